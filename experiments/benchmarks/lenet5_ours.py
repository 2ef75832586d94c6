"""A fit of `lenet5` with a posterior: `python lenet5_ours.py POSTERIOR LR SEED DATA OUT`; prints seconds as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch

from explore import registry
from explore.core.rng import Rng
from explore.inference.predict import Predictor
from explore.learning.classification import classify
from explore.learning.fit import ImageFeed, last_epoch
from explore.nets import zoo
from explore.nets.likelihoods import Categorical
from explore.nets.net import Net

PRESETS = {"bbb": "plain"}  # the others' is `image`
SETTINGS: dict[str, dict[str, Any]] = {"bbb": {"reparameterisation": "local"}}  # noise at each pixel, as tabulated
WARM = 256


def main() -> None:
    """Fit, predict, say."""
    torch.set_num_threads(1)
    name, lr, seed, data, out = sys.argv[1:]
    with np.load(data) as found:
        x, y, test_x = (torch.from_numpy(found[key]) for key in ("x", "y", "test_x"))
    numbers = x.float()
    mean, scale = (value.reshape(1) for value in (numbers.mean(), numbers.std()))
    rng = Rng(int(seed))
    net = Net(zoo.build("lenet5", (1, 28, 28), 10, {}))
    own = {"epochs": 1, "batch_size": 128, "samples": 1, "lr": float(lr)} | SETTINGS.get(name, {})
    posterior = registry.posterior(name, net, Categorical(), PRESETS.get(name, "image"), **own)
    warm = rng.stream("toy")  # libraries import parts of themselves when they are used
    last_epoch(posterior, ImageFeed(x[:WARM], mean, scale, 1, warm), y[None, :WARM], warm)
    stream = rng.stream("fit")
    feed = ImageFeed(x, mean, scale, 1, stream)
    start = time.process_time()
    done = last_epoch(posterior, feed, y[None], stream)
    seconds = time.process_time() - start
    predictor = Predictor.sample(posterior, done.state, 10, rng.stream("test"))
    np.save(out, classify(predictor, ImageFeed(test_x, mean, scale, 1, rng)).probabilities.numpy())
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
