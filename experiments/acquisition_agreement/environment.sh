#!/bin/bash
# Makes the environment of the libraries that are compared with: bash environment.sh FOLDER, from the root of the
# repository. What only their notebooks need (Jupyter, SSH file systems) is left out.
set -euo pipefail
python3 -m venv "$1"
"$1/bin/pip" install -q -c constraints.txt \
    torch numpy scipy scikit-learn matplotlib pillow tqdm psutil torchmetrics structlog==22.3.0 toma==1.1.0
"$1/bin/pip" install -q --no-deps baal==2.1.0 batchbald-redux==2.0.5
