#!/bin/bash
# An environment of its own, for constraints.txt has another gpytorch: experiments/interop/environment.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
grep -viE '^(gpytorch|skorch)==' constraints.txt > "${TMPDIR:-/tmp}/interop-constraints.txt"
python3 -m venv "$1"
"$1/bin/pip" install -c "${TMPDIR:-/tmp}/interop-constraints.txt" . -r experiments/interop/requirements.txt
for library in modal skactiveml botorch sbx; do
    "$1/bin/python" -m "experiments.interop.with_$library"
done
