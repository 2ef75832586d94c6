#!/bin/bash
# Makes the environment of the libraries that uci_speed compares with: peers_environment.sh FOLDER
# Without torchvision, which they name and do not need here, and which must be of the same build as torch.
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -m venv "$1"
"$1/bin/pip" install -q -c constraints.txt torch ivon-opt==0.1.3 torchmetrics tensorboard scikit-learn scipy tqdm \
    opt-einsum einops linear-operator
"$1/bin/pip" install -q -c constraints.txt --no-deps bayesian-torch==0.5.0 laplace-torch==0.3 asdfghjkl==0.1a4 \
    backpack-for-pytorch curvlinops-for-pytorch einconv unfoldNd
