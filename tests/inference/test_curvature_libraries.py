"""Our curvature matrices against those of curvlinops and nngeometry: same net, weights, data and kind of Fisher.

Three conventions differ. Ours is the mean over N examples of the log-likelihood's curvature, weights [I, O] with the
bias as their last row; A carries the sum over the T positions of a convolution and S the mean (KFC).
curvlinops: the curvature of a loss. Mean squared error has no factor 1/2, so it is a Gaussian of precision 2, and its
sum is N times ours; the mean cross entropy is ours. Of A (x) S its A carries the mean over positions, its S the sum.
nngeometry: the mean over examples of sum_c df_c df_c^T for any function f of C outputs, which K-FAC spreads over both
factors: sqrt(C) A and S / sqrt(C). Both libraries lay out a layer as its weight [O, I - 1], then its bias.
"""

import warnings

import pytest
import torch
from torch import nn

from explore.core.rng import Rng
from explore.inference.structures.base import PerLayer, Structure, mean_squares
from explore.inference.structures.dense import Dense
from explore.inference.structures.kronecker import EigenRule, KroneckerRule
from explore.nets.likelihoods import Categorical, Gaussian
from explore.nets.net import Net
from tests import oracles

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # one of the things they import still calls torch.jit.script
    curvlinops = pytest.importorskip("curvlinops")
    pspace = pytest.importorskip("nngeometry.object.pspace")
    metrics = pytest.importorskip("nngeometry.metrics")

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
N, C = 9, 3  # examples, outputs or classes
MODULES = {
    "dense": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, C)),
    "conv": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 2, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(27, C, bias=False)
    ),
}


class Attends(nn.Module):
    """Attention over five places of four numbers, a convolution along them, and a layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.along, self.twice, self.last = nn.Conv1d(4, 4, 3, padding=1, groups=2), nn.Linear(4, 4), nn.Linear(4, C)

    def forward(self, x):
        h = x.view(len(x), 5, 4)
        h = h + self.attention(h, h, h)[0]  # with weights, since the faster kernel has no forward mode
        h = self.along(h.mT).mT.tanh()
        return self.last(self.twice(self.twice(h).tanh()).mean(1))


class Reads(nn.Module):
    """Embeddings of the whole numbers that 20 real ones round to."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(4, 3), nn.Linear(3, C)

    def forward(self, x):
        return self.last(self.words(x.round().long().clamp(0, 3)).tanh().mean(1))


OTHERS = {
    "attention, grouped, shared": Attends,
    "embedding": Reads,
    "one axis, dilated, depthwise": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 10)), nn.Conv1d(2, 4, 2, dilation=2), nn.Tanh(), nn.Conv1d(4, 4, 3, stride=2, groups=4),
        nn.Tanh(), nn.Flatten(), nn.Linear(12, C),
    ),
    "transposed": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2, 5)), nn.ConvTranspose2d(2, 4, 2, stride=2, groups=2), nn.Tanh(),
        nn.ConvTranspose2d(4, 1, 3, padding=1, dilation=2, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(72, C),
    ),
    "three axes": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2, 5)), nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, C)
    ),
}  # fmt: skip


class Case:
    """A net of one replica, its data, and every gradient that a kind of Fisher matrix is the second moment of."""

    def __init__(self, kind, task, fisher):
        rng = Rng(0, dtype=torch.float64)
        self.module = (MODULES | OTHERS)[kind]().double()
        self.net = Net(self.module)
        weights = self.net.glorot(1, rng, 1)
        self.net.module(weights, into=self.module)
        self.regression, self.fisher = task == "regression", fisher
        self.x = rng.normal(1, N, *{"dense": (4,), "conv": (2, 4, 4)}.get(kind, (20,)))
        samples = 1 if fisher == "empirical" else C
        layers = tuple(w.expand(-1, samples, -1, -1) for w in weights)
        self.y = rng.normal(1, N, C) if self.regression else (C * rng.uniform(1, N)).long()
        likelihood = Gaussian(noise_std=0.5**0.5) if self.regression else Categorical()
        noise = likelihood.sample_noise(likelihood.init(C, 1, rng), samples, rng)
        out, pullback = self.net.forward(layers, self.x)
        if fisher == "empirical":
            score = likelihood.score(noise, out, self.y.unsqueeze(1))
        elif self.regression:  # C targets whose residuals have the noise's covariance
            residual = (C * 0.5) ** 0.5 * torch.eye(C, dtype=torch.float64)
            score = likelihood.score(noise, out, out + residual[None, :, None])
        else:  # every class, weighted by its probability
            classes = torch.arange(C)[None, :, None].expand(1, C, N)
            probability = out.softmax(3).gather(3, classes.unsqueeze(3))
            score = likelihood.score(noise, out, classes) * (C * probability).sqrt()
        self.taps = pullback(score)
        order = oracles.unflat(torch.arange(self.net.weights), self.net.shapes)
        places = self.net.tensors([w[None, None] for w in order])  # of each parameter's numbers among our weights
        self.order = torch.cat([places[name].flatten() for name, _ in self.module.named_parameters()])

    def statistics(self, structure):
        start = structure.init(self.net.shapes, 1, Rng(1, dtype=torch.float64))
        return structure.observe(start, self.taps, 1.0, 1)

    def ours(self, name, sharing="expand"):
        """The matrix in the libraries' layout."""
        kronecker = KroneckerRule(1.0, "exact", sharing)
        structures: dict[str, Structure] = {
            "full": Dense(self.net.shapes, 1.0),
            "kfac": PerLayer(kronecker),
            "ekfac": PerLayer(EigenRule(kronecker, 1.0, 1, 1, 1)),
        }
        structure = structures[name]
        factor, ok = structure.factor(self.statistics(structure), 0.1)
        assert ok.all()
        matrix = oracles.dense(factor)[0] - 0.1 * torch.eye(self.net.weights, dtype=torch.float64)
        return matrix[self.order][:, self.order]

    def curvlinops(self, name, sharing="expand"):
        loss = nn.MSELoss(reduction="sum") if self.regression else nn.CrossEntropyLoss(reduction="mean")
        arguments = self.module, loss, list(self.module.parameters()), [(self.x[0], self.y[0])]
        if name == "full":
            operator = {"empirical": curvlinops.EFLinearOperator, "exact": curvlinops.GGNLinearOperator}[self.fisher]
            matrix = operator(*arguments)
        else:
            operator = {"kfac": curvlinops.KFACLinearOperator, "ekfac": curvlinops.EKFACLinearOperator}[name]
            fisher = {"empirical": "empirical", "exact": "type-2"}[self.fisher]
            matrix = operator(*arguments, fisher_type=fisher, kfac_approx=sharing, separate_weight_and_bias=False)
        return matrix @ torch.eye(self.net.weights, dtype=torch.float64) / (N if self.regression else 1)

    def nngeometry(self, kind):
        def function(x, y):
            out = self.module(x)
            if self.regression:  # log N(y; out, 1/2), or the root of its curvature
                return -(y - out).square().sum(1, keepdim=True) if self.fisher == "empirical" else 2**0.5 * out
            log_prob = out.log_softmax(1)
            if self.fisher == "empirical":
                return log_prob.gather(1, y.unsqueeze(1))
            return log_prob.detach().exp().sqrt() * log_prob

        return metrics.FIM(self.module, (self.x[0].clone(), self.y[0]), kind, variant="regression", function=function)


@pytest.fixture(params=MODULES)
def kind(request):
    return request.param


@pytest.fixture(params=["regression", "classes"])
def task(request):
    return request.param


@pytest.fixture(params=["empirical", "exact"])
def fisher(request):
    return request.param


@pytest.fixture
def case(kind, task, fisher):
    return Case(kind, task, fisher)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["full", "kfac", "ekfac"])
def test_curvlinops(case, name):
    close(case.ours(name), case.curvlinops(name))


@pytest.mark.parametrize("name", ["kfac", "ekfac"])
def test_curvlinops_reduce(task, fisher, name):
    case = Case("conv", task, fisher)
    close(case.ours(name, "reduce"), case.curvlinops(name, "reduce"))


@pytest.mark.parametrize("other", OTHERS)
def test_curvlinops_for_other_layers(other, task, fisher):
    case = Case(other, task, fisher)
    assert case.order.sort().values.equal(torch.arange(case.net.weights))
    close(case.ours("full"), case.curvlinops("full"))


def test_nngeometry_full(case):
    close(case.ours("full"), case.nngeometry(pspace.PMatDense).to_torch())


def test_nngeometry_diagonal(case):
    squares = torch.cat([mean_squares(t).flatten() for t in case.taps])
    # Their buffer for a convolution is in single precision.
    torch.testing.assert_close(squares[case.order], case.nngeometry(pspace.PMatDiag).get_diag(), rtol=1e-6, atol=0)


def test_nngeometry_kfac(case):
    factors = case.nngeometry(pspace.PMatKFAC).data.values()
    outputs = 1 if case.fisher == "empirical" else C
    structure = PerLayer(KroneckerRule(1.0, weight_sharing="expand"))
    for ours, (a, s) in zip(case.statistics(structure), factors, strict=True):
        close(ours.inputs[0], a / outputs**0.5)
        close(ours.outputs[0], s * outputs**0.5)


def test_nngeometry_ekfac(case):
    matrix = case.nngeometry(pspace.PMatEKFAC)
    matrix.update_diag((case.x[0].clone(), case.y[0]))
    close(case.ours("ekfac"), matrix.to_torch())


def test_the_matrices_differ_from_each_other(case):
    # Guards the tests above: no two of the approximations coincide on these nets.
    full, kfac, ekfac = (case.ours(name) for name in ("full", "kfac", "ekfac"))
    for one, two in ((full, kfac), (full, ekfac), (kfac, ekfac)):
        assert (one - two).abs().max() > 1e-2 * full.abs().max()
