"""Pools that are not arrays, and features of a frozen network."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import explore
from explore.core.errors import InputError
from explore.core.rng import Rng


class Sentences(nn.Module):
    """The mean of the embeddings of tokens that are not masked, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, tokens, mask):
        return self.last((self.words(tokens) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


class Graphs(nn.Module):
    """Two rounds of messages between nodes, and the sum over nodes."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 6), nn.Linear(6, 1)

    def forward(self, nodes, edges):
        return self.two((edges @ self.one(edges @ nodes).relu()).sum(1))


class Read(Dataset):
    """Items of tensors or dicts, whose reads are counted."""

    def __init__(self, values, labels=None):
        self.values, self.labels, self.reads = values, labels, 0

    def __len__(self):
        return len(next(iter(self.values.values())) if isinstance(self.values, dict) else self.values)

    def __getitem__(self, i):
        self.reads += 1
        item = {k: v[i] for k, v in self.values.items()} if isinstance(self.values, dict) else self.values[i]
        return item if self.labels is None else (item, self.labels[i])


def problems():
    rng = Rng(0)
    tokens, mask = (9 * rng.uniform(12, 5)).long(), (torch.arange(5) <= torch.arange(12)[:, None] % 5).float()
    nodes, edges = rng.normal(12, 4, 3), (rng.uniform(12, 4, 4) < 0.5).float()
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2))
    return {
        "images": (conv, rng.normal(12, 1, 5, 5), "categorical", torch.arange(12) % 2),
        "sequences": (Sentences(), {"tokens": tokens, "mask": mask}, "categorical", torch.arange(12) % 2),
        "graphs": (Graphs(), {"nodes": nodes, "edges": edges}, "gaussian", rng.normal(12)),
    }


@pytest.mark.parametrize("kind", problems())
def test_a_dataset_is_a_pool_like_its_tensors(kind):
    torch.manual_seed(0)
    module, values, likelihood, y = problems()[kind]
    chosen, predictions = [], []
    dataset = Read(values, y)
    with_labels = {**values, "labels": y} if isinstance(values, dict) else values
    for pool in (values, dataset, Read(values), with_labels, Read(with_labels)):
        posterior = explore.posterior("noisy-kfac", explore.Net(module), likelihood, epochs=2)
        learner = explore.ActiveLearner(posterior, pool, ["max-variance"], samples=5, standardise="none")
        learner.tell([0, 1, 2], y[:3])
        points, _ = learner.ask(1)
        chosen.append(points)
        predict = learner.fitted.probabilities if likelihood == "categorical" else learner.fitted.predict
        predictions.append(predict(pool)[0])
        saved = learner.state_dict()
        again = explore.ActiveLearner(posterior, pool, ["max-variance"], samples=5, standardise="none")
        again.load_state_dict(saved)
        assert torch.equal(again.labelled, learner.labelled)
    assert dataset.reads > 24
    for points, found in zip(chosen[1:], predictions[1:], strict=True):
        assert torch.equal(points, chosen[0])
        torch.testing.assert_close(found, predictions[0], rtol=0, atol=0)


def test_items_that_are_not_alike_are_refused():
    posterior = explore.posterior("noisy-kfac", explore.Net(nn.Linear(2, 1)), "gaussian", epochs=1)
    ragged = Read([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(InputError, match=r"items must be tensors of one shape .*; pad them"):
        explore.ActiveLearner(posterior, ragged)
    with pytest.raises(InputError, match="an input is not a finite number"):
        explore.ActiveLearner(posterior, Read(torch.full((3, 2), torch.nan)))
    with pytest.raises(InputError, match="an item has 3 parts; it must be an input or a pair of input and label"):
        explore.ActiveLearner(posterior, TensorDataset(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3)))
    with pytest.raises(InputError, match="a Stream has no length"):
        explore.ActiveLearner(posterior, Stream())


class Stream(torch.utils.data.IterableDataset):
    """Has no items by index."""

    def __iter__(self):
        return iter(())


def test_features_are_the_outputs_in_evaluation_mode():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5)).train()
    x = torch.randn(10, 1, 5, 5)
    expected = module.eval()(x).flatten(1)
    module.train()
    for data in (x, x.numpy(), TensorDataset(x, torch.zeros(10)), Read(x)):
        found = explore.features(module, data, batch_size=4)
        torch.testing.assert_close(found, expected)
        assert module.training and not found.requires_grad
    sentences = Sentences()
    values = problems()["sequences"][1]
    for inputs in (values, {**values, "labels": torch.zeros(12)}):
        torch.testing.assert_close(explore.features(sentences, inputs, batch_size=5), sentences(**values))
