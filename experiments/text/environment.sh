#!/bin/bash
# Makes the environment of the text experiment: environment.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -m venv "$1"
"$1/bin/pip" install -q -c constraints.txt -e . transformers==5.24.0 peft==0.21.2 torchmetrics \
    opt-einsum einops linear-operator tqdm
"$1/bin/pip" install -q -c constraints.txt --no-deps laplace-torch==0.3 asdfghjkl==0.1a4 backpack-for-pytorch \
    curvlinops-for-pytorch einconv unfoldNd
