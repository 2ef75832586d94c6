#!/bin/bash
# Makes the environment of the libraries that uci_speed compares with: peers_environment.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -m venv "$1"
"$1/bin/pip" install -q -c constraints.txt torch ivon-opt==0.1.3
"$1/bin/pip" install -q bayesian-torch==0.5.0 laplace-torch==0.3
