#!/bin/bash
# Makes the environment of bmdal_reg: experiments/active_rivals/environment.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -m venv "$1"
"$1/bin/pip" install -q -c constraints.txt torch numpy dill psutil
"$1/bin/pip" install -q --no-deps bmdal_reg==3.0.2
