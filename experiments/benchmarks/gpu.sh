#!/usr/bin/env bash
# All tables of one GPU, from the root of the repository: results/{updates,hadamard,bonus}_gpu.* beside this file.
# First what the tests of the library can say of the device alone.
set -euo pipefail
python -c "import torch; assert torch.cuda.is_available(), 'there is no GPU'; print(torch.cuda.get_device_name())"
python -m pytest -q tests -k "cuda or gpu"
python -m experiments.benchmarks.hadamard --budget 0.3
python -m experiments.benchmarks.bonus --device cuda
python -m experiments.benchmarks.updates --device cuda
