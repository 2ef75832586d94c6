#!/bin/bash
# Makes the environment of the thirty modules: environment.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -m venv "$1"
"$1/bin/pip" install -q -c constraints.txt -e . timm==1.0.31 transformers==5.24.0 peft==0.21.2
"$1/bin/pip" install -q -c constraints.txt --no-deps torchvision
