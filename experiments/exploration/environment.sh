#!/bin/bash
# Makes the environment of rliable, which needs an older pandas: experiments/exploration/environment.sh FOLDER
set -euo pipefail
python3 -m venv "$1"
"$1/bin/pip" install -q rliable==1.2.0 arch==7.2.0 "pandas<3"
