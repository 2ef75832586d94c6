#!/bin/bash
# Makes the environment of the optimisers and trainers: environment.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -m venv "$1"
"$1/bin/pip" install -q -c constraints.txt -e ".[test]" ivon-opt==0.1.3 lightning==2.6.6 transformers==5.24.0 \
    accelerate==1.15.0
git clone -q "${EVON:-https://github.com/team-approx-bayes/evon}" "$1/evon"
git -C "$1/evon" checkout -q f51ee25
"$1/bin/pip" install -q -c constraints.txt --no-deps "$1/evon"
