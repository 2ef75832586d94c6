#!/bin/bash
# Makes the environment of bde, on the CPU build of JAX: experiments/sampling/environment.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -m venv "$1"
"$1/bin/pip" install -q -c constraints.txt jax jaxlib numpy scipy scikit-learn tqdm \
    sklearn-contrib-bde==1.0.2 blackjax==1.2.2 optax==0.2.8 jaxopt==0.8.5 fastprogress==1.1.6 ipython==9.18.1
