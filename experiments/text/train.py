"""One fit of a tiny GPT, and its scores as a line of JSON: what `experiments.text.run` starts for each cell.

Its arguments are "pretrain" and a file to write, or "fit", that file and the settings of the fit as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which torch's optimisers import in their first step; not counted as memory of training
import torch.nn.functional as F
from laplace import Laplace  # type: ignore[import-not-found]
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2Model

import explore
from experiments.text.corpus import LENGTH, LETTERS, Corpus, corpus, docstrings, encoded
from explore.learning.classification import auroc

SAMPLES, BATCH, EPOCHS, RANK, PRETRAINING = 20, 32, 2, 8, 3000  # PRETRAINING: updates
SIZES = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, "vocab_size": len(LETTERS)}
PARTS: dict[str, Any] = {"last": "head", "lora": "*lora_*", "all": "all"}  # as `bayesian=` takes them
OURS = {"noisy-kfac": explore.optim.NoisyKFAC, "vogn": explore.optim.VOGN}


class TinyGPT(nn.Module):
    """GPT-2 with an output layer of its own: the logits of the character after a context."""

    def __init__(self) -> None:
        super().__init__()
        rates = {name: 0.0 for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop")}
        self.body = GPT2Model(GPT2Config(**SIZES, **rates, use_cache=False))
        self.head = nn.Linear(SIZES["n_embd"], len(LETTERS))

    def hidden(self, x: Tensor) -> Tensor:
        """Return the features of all positions."""
        states: Tensor = self.body(input_ids=x).last_hidden_state
        return states

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(x)[:, -1])
        return logits


def pretrain(file: Path) -> None:
    """Train on the docstrings that are not held out, at all positions of 32 contexts per update."""
    torch.manual_seed(0)
    model, text = TinyGPT(), encoded("\n\n".join(docstrings(held_out=False)))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-6, PRETRAINING)
    for step in range(PRETRAINING):
        x = text[torch.randint(len(text) - LENGTH, (BATCH, 1)) + torch.arange(LENGTH + 1)]
        loss = F.cross_entropy(model.head(model.hidden(x[:, :-1])).flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 100 == 99:
            print(step + 1, float(loss), file=sys.stderr)
    torch.save({"model": model.state_dict(), "tune": tuple(corpus(True)), "test": tuple(corpus(False))}, file)


def begun(weights: dict[str, Tensor], part: str) -> Any:
    """Return the pretrained model, with adapters for LoRA, of which only the part to train takes gradients."""
    model: Any = TinyGPT()
    model.load_state_dict(weights)
    if part == "lora":
        names = ["c_attn", "c_proj", "c_fc"]
        model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=RANK, target_modules=names, fan_in_fan_out=True))
    if part == "last":
        model.body.requires_grad_(False)
    return model


def loop(model: Any, optimizer: Any, data: Corpus, seed: int, step: Callable[[Tensor, Tensor], Any]) -> None:
    """Train for all epochs, with a learning rate that decreases to 0."""
    x, y = data.train
    order = torch.Generator().manual_seed(seed)
    batches = [part for _ in range(EPOCHS) for part in torch.randperm(len(y), generator=order).split(BATCH)]
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-6, len(batches))
    for rows in batches:
        optimizer.zero_grad()
        step(x[rows], y[rows])
        optimizer.step()
        scheduler.step()


def adam(model: Any, data: Corpus, seed: int, settings: dict[str, Any]) -> None:
    """Train by Adam."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], **settings)
    loop(model, optimizer, data, seed, lambda x, y: F.cross_entropy(model(x), y).backward())


def variational(method: str, part: str, model: Any, data: Corpus, seed: int, settings: dict[str, Any]) -> Any:
    """Train a distribution over the layers of a part; return the optimizer."""
    n_data = len(data.train[1])
    optimizer = OURS[method](model, "categorical", n_data, bayesian=PARTS[part], seed=seed, **settings)

    def step(x: Tensor, y: Tensor) -> None:
        with optimizer.sampled():
            loss = F.cross_entropy(model(x), y)
        loss.backward()

    loop(model, optimizer, data, seed, step)
    return optimizer


def scores(predict: Callable[[Tensor], Tensor], data: Corpus, far: tuple[str, ...]) -> dict[str, float]:
    """Return the scores of probabilities, and how well their entropy detects contexts of other kinds."""
    x, y = data.test
    p = predict(x)
    confidence, predicted = p.max(-1)
    right = (predicted == y).float()
    bins = (confidence * 15).ceil().clamp(1, 15)
    gaps = [(right - confidence)[bins == b].sum().abs() for b in range(1, 16)]
    nll = F.nll_loss(p.clamp_min(1e-12).log(), y)
    found = {"nll": float(nll), "error": 1 - float(right.mean()), "ece": float(sum(gaps)) / len(y)}
    return found | {f"auroc_{k}": auroc(entropy(p), entropy(predict(getattr(data, k)))) for k in far}


def entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)


def memory(field: str) -> float:
    """Return a field of the memory of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def fit(file: Path, method: str, part: str, seed: int, tune: bool, **settings: Any) -> dict[str, float]:
    """Train one model, and return its scores, CPU seconds and memory."""
    saved = torch.load(file)
    torch.manual_seed(seed)
    data, model = Corpus(*saved["tune" if tune else "test"]), begun(saved["model"], part)
    x, y = data.train
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before, begin = memory("VmRSS"), time.process_time()
    fitted: Any = None
    if method in OURS:
        fitted = variational(method, part, model, data, seed, settings)
    else:
        adam(model, data, seed, settings)
    if method == "laplace":
        fitted = explore.laplace(model, {"x": x}, y, likelihood="categorical", samples=SAMPLES, seed=seed)
    elif method == "laplace-torch":
        fitted = Laplace(model, "classification", subset_of_weights="last_layer", hessian_structure="kron")
        fitted.fit(DataLoader(TensorDataset(x, y), batch_size=BATCH))
        fitted.optimize_prior_precision(method="marglik")
    used = {"seconds": time.process_time() - begin, "memory": memory("VmHWM") - before}
    torch.manual_seed(seed)
    heads: Any = fitted.sample(SAMPLES) if method == "laplace-torch" else None

    def predict(x: Tensor) -> Tensor:
        """Return mean probabilities of the samples."""
        parts = x.split(BATCH)
        with torch.no_grad():
            if method == "adam":
                return torch.cat([model(rows).softmax(-1) for rows in parts])
            if method == "laplace":
                return torch.cat([fitted.probabilities({"x": rows})[0] for rows in parts])
            if method in OURS:
                state = fitted.posterior_state
                found: Any = explore.predict(fitted.posterior, state, parts, samples=SAMPLES, seed=seed)
                return found.probabilities[0]
            features = torch.cat([model.hidden(rows)[:, -1] for rows in parts])
            logits = (head_of(sample, features) for sample in heads)
            return torch.stack([each.softmax(-1) for each in logits]).mean(0)

    return scores(predict, data, () if tune else ("code", "shuffled")) | used


def head_of(sample: Tensor, features: Tensor) -> Tensor:
    """Return the logits of a last layer whose weights and biases are one vector."""
    bias = sample[-len(LETTERS) :]
    return features @ sample[: -len(LETTERS)].view(len(LETTERS), -1).T + bias


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "pretrain":
        pretrain(Path(sys.argv[2]))
    else:
        print(json.dumps(fit(Path(sys.argv[2]), **json.loads(sys.argv[3]))))
