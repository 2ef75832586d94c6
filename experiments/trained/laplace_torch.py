"""laplace-torch's approximation: `python laplace_torch.py NETWORK.pt OUT.npz STRUCTURE SUBSET VARIANCE NOISE`.

NETWORK.pt has the module, the training data x and y, and the points to predict. VARIANCE is the prior's; 0: by the
marginal likelihood. NOISE is the deviation of a regression; 0: classes. Writes the mean and variance of the linearised
network, the log marginal likelihood, and processor seconds of fit and prediction. It needs laplace-torch and torch.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn

STRUCTURES = {"kfac": "kron", "diagonal": "diag", "full": "full"}
AT_ONCE = 100  # points per prediction: its time grows with the square


def shim() -> None:
    """Declare two operators that torchvision, which laplace-torch imports through torchmetrics, expects."""
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_library"] = library


def main() -> None:
    """Fit, predict, write."""
    torch.set_num_threads(1)
    shim()
    laplace: Any = importlib.import_module("laplace")
    network, out, structure, subset, prior, noise = sys.argv[1:]
    saved = torch.load(network, weights_only=False)
    module: nn.Module = saved["module"]
    task = "regression" if float(noise) else "classification"
    batch = saved["batch"] or len(saved["x"])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(saved["x"], saved["y"]), batch_size=batch)
    options = {"sigma_noise": float(noise)} if float(noise) else {}
    begin = time.process_time()
    found = laplace.Laplace(
        module, task, subset_of_weights="last_layer" if subset == "last" else "all",
        hessian_structure=STRUCTURES[structure], prior_precision=1 / (float(prior) or 1.0), **options,
    )  # fmt: skip
    found.fit(loader)
    if not float(prior):
        found.optimize_prior_precision(method="marglik")
    fitted = time.process_time()
    parts = [found._glm_predictive_distribution(part) for part in saved["points"].split(AT_ONCE)]
    predicted = time.process_time()
    mean, covariance = (torch.cat([part[i] for part in parts]).detach() for i in (0, 1))
    variance = torch.diagonal(covariance, dim1=1, dim2=2)
    evidence = float(found.log_marginal_likelihood())
    np.savez(out, mean=mean, variance=variance, evidence=evidence, fit=fitted - begin, predict=predicted - fitted)


if __name__ == "__main__":
    main()
