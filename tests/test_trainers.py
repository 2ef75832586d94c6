"""The optimisers within Lightning and the Trainer of transformers, where these are installed.

experiments/optimisers/environment.sh FOLDER
FOLDER/bin/python -m pytest tests/test_trainers.py -n 0
"""

import socket
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from explore.learning import optim

lightning: Any = pytest.importorskip("lightning")
transformers: Any = pytest.importorskip("transformers")
OPTIMISERS = [optim.VOGN, optim.NoisyAdam, optim.NoisyKFAC, optim.NoisyEKFAC, optim.SLANG]


def data(count: int = 64) -> TensorDataset:
    """Two classes with clear means."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (count,), generator=generator)
    return TensorDataset(torch.randn(count, 4, generator=generator) + 3 * y[:, None], y)


class Classifier(lightning.LightningModule):
    """A module for Lightning's own loop, which runs the backward pass and the step."""

    def __init__(self, kind: Any, settings: dict[str, Any]):
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))
        self.kind, self.settings, self.losses = kind, settings, list[float]()

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = self.kind(self.model, "categorical", 64, every_pass=True, **self.settings)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)]


def trainer(folder: Any, epochs: int, **more: Any) -> Any:
    return lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, **more,
    )  # fmt: skip


def fitted(kind: Any, folder: Any, epochs: int, checkpoint: Any = None, **more: Any) -> tuple[Any, Any]:
    module, run = Classifier(kind, {}), trainer(folder, epochs, **more)
    run.fit(module, DataLoader(data(), batch_size=16), ckpt_path=checkpoint)
    return module, run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OPTIMISERS)
def test_lightning_trains_and_resumes(kind, tmp_path):
    module, _ = fitted(kind, tmp_path / "whole", 4)
    assert len(module.losses) == 16 and sum(module.losses[-4:]) < sum(module.losses[:4])
    _, first = fitted(kind, tmp_path / "first", 2)
    first.save_checkpoint(tmp_path / "two.ckpt")
    again, _ = fitted(kind, tmp_path / "again", 4, tmp_path / "two.ckpt")
    for p, q in zip(again.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")
def test_lightning_accumulates_clips_and_runs_two_processes(tmp_path):
    module, _ = fitted(optim.NoisyKFAC, tmp_path, 3, accumulate_grad_batches=2, gradient_clip_val=1.0)
    assert sum(module.losses[-4:]) < sum(module.losses[:4])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER_PORT", port)
        strategy = lightning.pytorch.strategies.DDPStrategy(start_method="spawn")
        module, run = fitted(optim.NoisyKFAC, tmp_path, 2, devices=2, strategy=strategy)
    assert run.state.finished and all(p.isfinite().all() for p in module.parameters())


class Rows(Dataset):
    """Token sequences in which the first token is the class."""

    def __init__(self, count: int = 64):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(2, 20, (count, 6), generator=generator)
        self.labels = torch.randint(0, 2, (count,), generator=generator)
        self.ids[:, 0] = self.labels

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OPTIMISERS)
def test_the_trainer_of_transformers_trains_and_resumes(kind, tmp_path):
    def run(folder: str, steps: int, checkpoint: Any = None) -> tuple[Any, Any]:
        transformers.set_seed(0)
        config = transformers.BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=6, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        model = transformers.BertForSequenceClassification(config)
        optimizer = kind(model, "categorical", 64, every_pass=True)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / folder), max_steps=steps, per_device_train_batch_size=16, use_cpu=True,
            report_to=[], disable_tqdm=True, save_steps=8, logging_steps=8, lr_scheduler_type="constant",
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=Rows(), optimizers=(optimizer, None))
        trainer.train(resume_from_checkpoint=checkpoint)
        return model, trainer

    model, whole = run("whole", 16)
    losses = [row["loss"] for row in whole.state.log_history if "loss" in row]
    assert losses[-1] < losses[0]
    again, _ = run("again", 16, str(tmp_path / "whole" / "checkpoint-8"))
    for p, q in zip(again.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)
