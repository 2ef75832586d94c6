"""Networks that are functions of the user's: tried before there is a run, and known again."""

import json
import sys
from pathlib import Path

import pytest

from explore.core.errors import InputError
from explore.nets import zoo

CODE = """
import torch
from torch import nn


class Random(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.fixed, self.last = torch.randn(64, 8), nn.Linear(8, classes)

    def forward(self, x):
        return self.last(torch.cos(x.flatten(1) @ self.fixed))


class Two(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.last = nn.Linear(64, classes)

    def forward(self, x):
        return self.last(x.flatten(1)), x


def random(classes):
    return Random(classes)


def seeded(classes):
    made = Random(classes)
    made.fixed = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    return made


def wide(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes + 1))


def small(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, classes))


def other_size(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(65, classes))


class Scaled(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.scale, self.last = nn.Parameter(torch.tensor(1.0)), nn.Linear(64, classes)

    def forward(self, x):
        return self.last(self.scale * x.flatten(1))


def scaled(classes):
    return Scaled(classes)


def lazy(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


def two(classes):
    return Two(classes)


def divided(classes):
    return nn.Linear(64, classes // 0)


class Forward(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last({}[x])


def keyed(classes):
    return Forward()


class Convolved(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.first, self.last, self.aux = nn.Conv2d(1, 3, 3), nn.Linear(3, classes), nn.Linear(3, 2)

    def forward(self, x):
        h = self.first(x).mean((2, 3), keepdim=True)
        self.said = self.aux(h.flatten(1))
        return self.last(h.flatten(1))


class Squeezed(Convolved):
    def __init__(self, classes):
        super().__init__(classes)
        del self.aux

    def forward(self, x):
        return self.last(self.first(x).mean((2, 3), keepdim=True).squeeze())


def auxiliary(classes):
    return Convolved(classes)


def squeezed(classes):
    return Squeezed(classes)


def normalised(classes, momentum: float = 0.1):
    norm = nn.BatchNorm2d(3, momentum=momentum)
    return nn.Sequential(nn.Conv2d(1, 3, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(108, classes))
"""
TINY = ["classify", "--dataset", "digits", "--epochs", 1, "--train", 50, "--samples", 3, "--quiet", "--json"]


@pytest.fixture
def nets(monkeypatch, tmp_path):
    (tmp_path / "ownnets.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ownnets", raising=False)
    return tmp_path / "ownnets.py"


def test_a_network_may_have_a_parameter_of_its_own(nets):
    assert len(zoo.outputs("ownnets:scaled", (1, 8, 8), 10, {})) == zoo.KEPT


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("random", "ownnets:random is not deterministic"),
        ("wide", r"ownnets:wide returns \[2, 11\] for two images; expected logits of shape \[2, 10\]"),
        ("other_size", r"ownnets:other_size fails on images of shape \[N, 1, 8, 8\]: mat1 and mat2"),
        ("two", "ownnets:two returns a tuple"),
        ("lazy", r"layer '1' \(LazyLinear\)"),
        ("divided", r"with classes=10: integer .* \(ZeroDivisionError at .*ownnets.py, line \d+\)$"),
        ("auxiliary", "the output does not depend on layer 'aux'"),
        ("squeezed", "the network fails on a batch of one .*; use flatten"),
        ("keyed", r"fails on images of shape \[N, 1, 8, 8\]: tensor.* \(KeyError at .*ownnets.py, line \d+\)$"),
    ],
)
def test_what_is_refused(nets, name, message):
    with pytest.raises(InputError, match=message):
        zoo.outputs(f"ownnets:{name}", (1, 8, 8), 10, {})


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (CODE + "\nshape = images.shape\n", r"name 'images' is not defined \(NameError at .*ownnets.py, line \d+\)$"),
        (CODE + "\ndef (", r"SyntaxError: .*ownnets.py, line \d+\)$"),
        ("import no_such_package", "No module named 'no_such_package' .*line 1.; install it, or add its folder to"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_by_its_line(nets, code, message):
    nets.write_text(code)
    with pytest.raises(InputError, match=f"(?s)cannot load the network 'ownnets:small': {message}"):
        zoo.outputs("ownnets:small", (1, 8, 8), 10, {})


@pytest.mark.parametrize(
    ("name", "message"), [("wide", "ownnets:wide returns [2, 11]"), ("auxiliary", "does not depend on layer 'aux'")]
)
def test_it_is_refused_before_there_is_a_run(nets, explore, name, message):
    found = explore(*TINY, "--net", f"ownnets:{name}")
    assert found.exit_code == 2 and message in found.stderr
    assert not Path("runs").exists()
    found = explore("active", "--dataset", "digits", "--net", f"ownnets:{name}", "--rounds", 1, "--trials", 1)
    assert found.exit_code == 2 and message in found.stderr


def test_a_network_is_known_again(nets, monkeypatch):
    small, seeded = (zoo.outputs(f"ownnets:{n}", (1, 8, 8), 10, {}) for n in ("small", "seeded"))
    assert small == zoo.outputs("ownnets:small", (1, 8, 8), 10, {}) and len(small) == zoo.KEPT
    zoo.check_known("ownnets:small", small, small)
    zoo.check_known("ownnets:small", small, None)
    with pytest.raises(InputError, match="ownnets:small builds another network than when the run started"):
        zoo.check_known("ownnets:small", small, seeded)
    assert zoo.outputs("mlp", (1, 8, 8), 10, {}) == ()


def test_a_normalised_network_is_known_by_its_momentum(nets):
    fast, slow = (zoo.outputs("ownnets:normalised", (1, 8, 8), 10, {"momentum": m}) for m in (0.9, 0.1))
    with pytest.raises(InputError, match="ownnets:normalised builds another network than when the run started"):
        zoo.check_known("ownnets:normalised", fast, slow)
    with pytest.raises(InputError, match="builds another network"):
        zoo.check_known("ownnets:normalised", fast, fast[:1])


def test_a_function_that_was_edited_is_not_gone_on_with(nets, explore):
    found = explore(*TINY, "--net", "ownnets:small")
    assert found.exit_code == 0, found.output
    run = json.loads(found.stdout)["run"]
    assert explore("classify", "--resume", run, "--trust", "ownnets").exit_code == 0
    # Of another length: Python takes a file of the same second and size for the one that it compiled.
    nets.write_text(CODE.replace("nn.ReLU()", "nn.Sigmoid()"))
    del sys.modules["ownnets"]
    sys.path_importer_cache.clear()
    for again in (["classify", "--resume", run], ["predict", run, "images.npz"]):
        Path("images.npz").touch()
        found = explore(*again, "--trust", "ownnets")
        assert found.exit_code == 2, found.output
        assert "ownnets:small builds another network than when the run started" in found.stderr


def test_arguments_of_what_has_no_signature():
    with pytest.raises(InputError, match="builtins:zip cannot be called; it must be a function of in_channels"):
        zoo.settings("builtins:zip", {"width": "1"})
