"""Any module as a net: its outputs, taps and samples against the module itself, and the fate of every parameter."""

import copy
import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

import explore
from explore import registry
from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.nets.net import Net, mlp
from tests import oracles

R, S, N, WORDS = 2, 3, 4, 11


class Vision(nn.Module):
    """A vision transformer; without `first`, sequences have their examples on the second axis."""

    def __init__(self, first, **options):
        super().__init__()
        self.patch, self.first = nn.Conv2d(1, 8, 4, 4), first
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=first, dropout=0.1, **options)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.patch(x).flatten(2).mT
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.place
        h = self.layers(h) if self.first else self.layers(h.transpose(0, 1)).transpose(0, 1)
        return self.head(h[:, 0])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn = nn.Embedding(WORDS, 4, padding_idx=0), nn.LSTM(4, 3, batch_first=True)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.rnn(self.words(x))[0][:, -1])


class Language(nn.Module):
    """Tied word vectors and outputs, and places that do not depend on the example."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Embedding(7, 8)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True, kdim=8, vdim=8, add_bias_kv=True, add_zero_attn=True)
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.head((h + self.mix(h, h, h, key_padding_mask=x == 0, attn_mask=mask)[0])[:, -1])


class Apart(nn.Module):
    """Queries, keys and values of several sizes."""

    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.MultiheadAttention(4, 2, kdim=3, vdim=2, bias=False), nn.Linear(4, 2)

    def forward(self, x):
        x = x.transpose(0, 1)  # examples on the second axis
        out, weights = self.mix(x, x[..., :3], x[..., 1:3])
        return self.head(out.mean(0)) + weights.sum((1, 2))[:, None]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.norm(self.layer(self.norm(self.layer(x)).tanh())))


class Windows(nn.Module):
    """Parts of an example as rows of the batch, for dense layers and convolutions."""

    def __init__(self):
        super().__init__()
        self.dense, self.conv, self.head = nn.Linear(4, 5), nn.Conv2d(1, 2, 2), nn.Linear(14, 2)

    def forward(self, x):
        dense = self.dense(x.view(-1, 4)).tanh().view(len(x), -1)
        images = x.view(-1, 1, 1, 4).expand(-1, -1, 2, -1)[..., :2]
        return self.head(torch.cat([dense, self.conv(images).view(len(x), -1)], 1))


class BatchNormAct2d(nn.BatchNorm2d):
    """As in timm, where the name is the same."""

    def __init__(self, channels):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.SiLU(inplace=True)
        self.running_mean = torch.rand(channels)

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class Last(nn.Module):
    def forward(self, outputs):
        return outputs[0][:, -1]


def chain(*layers):
    return nn.Sequential(*layers)


CASES = {
    "layer-norm": (lambda: chain(nn.Linear(3, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2)), (3,)),
    "rms-norm": (lambda: chain(nn.Linear(3, 6), nn.RMSNorm(6), nn.Linear(6, 1)), (3,)),
    "group-norm": (
        lambda: chain(nn.Conv2d(2, 6, 2), nn.GroupNorm(3, 6), nn.Flatten(), nn.Linear(36, 2)), (2, 3, 4)
    ),
    "dropout": (lambda: chain(nn.Linear(3, 6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 2)), (3,)),
    "own-parameter": (lambda: chain(nn.Linear(3, 4), nn.PReLU(4), nn.Linear(4, 2)), (3,)),
    "weight-norm": (
        lambda: chain(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)), (3,)
    ),
    "sequences": (
        lambda: chain(
            nn.Conv1d(2, 4, 3, stride=2, padding=1, dilation=2), nn.ReLU(),
            nn.Conv1d(4, 2, 2, padding="same", padding_mode="circular"), nn.Flatten(), nn.Linear(8, 2),
        ),
        (2, 9),
    ),
    "volumes": (
        lambda: chain(
            nn.Conv3d(1, 3, 2, stride=(1, 2, 1), padding=1), nn.Tanh(), nn.Conv3d(3, 4, 2, groups=1, bias=False),
            nn.BatchNorm3d(4), nn.Flatten(), nn.Linear(72, 2),
        ),
        (1, 3, 4, 3),
    ),
    "transposed": (
        lambda: chain(
            nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1), nn.Tanh(),
            nn.ConvTranspose2d(4, 2, 2, groups=2, dilation=2), nn.Flatten(), nn.Linear(160, 2),
        ),
        (2, 3, 4),
    ),
    "transposed-sequences": (
        lambda: chain(nn.ConvTranspose1d(2, 3, 3, stride=2, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2)),
        (2, 4),
    ),
    "groups": (
        lambda: chain(
            nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding="same", groups=6), nn.ReLU(),
            nn.Conv2d(6, 8, 1, groups=2, bias=False, stride=2), nn.Flatten(), nn.Linear(72, 3),
        ),
        (2, 5, 6),
    ),
    "reflected": (
        lambda: chain(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect", groups=2), nn.Flatten(), nn.Linear(48, 2)),
        (2, 3, 4),
    ),
    "norm-with-activation": (
        lambda: chain(nn.Conv2d(2, 3, 2), chain(BatchNormAct2d(3)), nn.Flatten(), nn.Linear(18, 2)), (2, 3, 4)
    ),
    "vision": (lambda: Vision(True), (1, 8, 8)),
    "vision-second-axis": (lambda: Vision(False, norm_first=True, activation="gelu"), (1, 8, 8)),
    "twice": (Twice, (3,)),
    "windows": (Windows, (8,)),
    "recurrent": (Recurrent, "words"),
    "language": (Language, "words"),
    "attention-apart": (Apart, (5, 4)),
}  # fmt: skip


def inputs(shape, n=N, seed=0):
    torch.manual_seed(seed)
    if shape == "words":
        return torch.randint(0, WORDS, (1, n, 7))
    return torch.randn(1, n, *shape, dtype=torch.float64)


def build(name):
    torch.manual_seed(1)
    make, shape = CASES[name]
    return make().double().eval(), shape


EVERYTHING = ("layer-norm", "rms-norm", "group-norm", "own-parameter", "weight-norm", "vision", "recurrent")


@pytest.fixture(params=[*CASES, *(f"everything, {name}" for name in EVERYTHING)])
def case(request):
    """(module, net that starts from it, its layers, x), in float64."""
    *everything, name = request.param.split(", ")
    module, shape = build(name)
    net = Net(module, trained=True, bayesian=everything or "all")
    assert not everything or not net.points
    rng = Rng(0, dtype=torch.float64)
    layers = (*net.initial(1, rng, 1), *net.initial_norms(1, rng), *net.initial_points(1, rng))
    return module, net, layers, inputs(shape)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def repeated(layers, rng, net):
    """Layers of R replicas and S samples, all different."""
    weights = [w + 0.1 * rng.normal(*w.shape) for w in net.glorot(R, rng, S)]
    own = (v * (1 + 0.1 * rng.uniform(R, *v.shape[1:])) for v in layers[len(weights) :])
    return (*weights, *own)


def test_the_output_is_the_modules_own(case):
    module, net, layers, x = case
    with torch.no_grad():
        close(net.output(layers, x)[0, 0], module(x[0]))


def test_taps_are_the_gradients_of_every_example(case):
    module, net, layers, x = case
    count = len(net.shapes)

    def alone(b, *weights):
        return (net.output((*weights, *layers[count:]), x[:, b : b + 1]) * g[:, :, b : b + 1]).sum()

    out, pullback = net.forward(layers, x)
    g = torch.randn_like(out)
    taps = pullback(g)
    for b in range(N):
        expected = torch.autograd.functional.jacobian(partial(alone, b), layers[:count])
        for found, slope in zip(taps, expected, strict=True):
            part = found.part(slice(b, b + 1))
            close(torch.einsum("rsbti,rsbto->rsio", part.inputs, part.grads), slope)
    for found in taps:  # the fast ways against the written-out one
        every = torch.einsum("rsbti,rsbto->rsbio", found.inputs, found.grads)
        close(found.gradients(), every.sum(2))
        close(found.gradient(), every.sum((1, 2)))
        if found.example_gradients:
            close(found.example_gradients(found.grads), every[:, 0])
        a = found.inputs.flatten(1, 3)
        zero = torch.zeros(1, a.shape[2], a.shape[2], dtype=a.dtype)
        close(found.average_inputs(zero, 1.0), a.mT @ a / N)
        close(found.mean_inputs(), found.inputs.mean(3))


def test_replicas_and_samples_run_as_alone(case):
    _, net, layers, x = case
    rng = Rng(3, dtype=torch.float64)
    many, x = repeated(layers, rng, net), torch.cat([x, x.flip(1)])
    out, pullback = net.forward(many, x)
    g = torch.randn_like(out)
    taps = pullback(g)
    for r in range(R):
        for s in range(S):
            one = tuple(t[r : r + 1, s : s + 1] if t.shape[1] > 1 else t[r : r + 1] for t in many)
            alone, pull = net.forward(one, x[r : r + 1])
            close(alone[0, 0], out[r, s])
            for found, of_all in zip(pull(g[r : r + 1, s : s + 1]), taps, strict=True):
                close(found.gradients()[0, 0], of_all.gradients()[r, s])


def test_members_have_point_estimates_of_their_own(case):
    _, net, layers, x = case
    rng, count = Rng(3, dtype=torch.float64), len(net.shapes)
    weights = net.glorot(1, rng, S)
    own = tuple(v * (1 + 0.1 * rng.uniform(1, S, *v.shape[2:])) for v in layers[count:])
    out = net.output((*weights, *own), x)
    for s in range(S):
        close(net.output([t[:, s : s + 1] for t in (*weights, *own)], x)[:, 0], out[:, s])


def test_gradients_of_point_estimates_are_summed_over_samples_and_examples(case):
    _, net, layers, x = case
    if not net.points or net.random:
        pytest.skip("no point estimates, or dropout")
    many, x = repeated(layers, Rng(3, dtype=torch.float64), net), x.repeat(R, 1, *[1] * (x.dim() - 2))
    out, pullback = net.train_forward(many, x)
    g, count = torch.randn_like(out), len(net.shapes) + len(net.norms)
    free = tuple(v.clone().requires_grad_() for v in many[count:])
    loss = (net.train_output((*many[:count], *free), x)[0] * g).sum()
    close(pullback(g).points, torch.autograd.grad(loss, free))


def test_a_module_gets_its_weights_back(case):
    module, net, layers, x = case
    other = copy.deepcopy(module)
    with torch.no_grad():
        for t in other.parameters():
            t.zero_()
        assert net.module(layers, into=other) is other
        close(other(x[0]), module(x[0]))
        many = repeated(layers, Rng(3, dtype=torch.float64), net)
        made, out = net.module(many, sample=1), net.output(many, x.repeat(R, 1, *[1] * (x.dim() - 2)))
        close(made(x[0]), out[0, 1])
    assert all(torch.equal(a, b) for a, b in zip(module.state_dict().values(), build_again(module), strict=True))


def build_again(module):
    return copy.deepcopy(module).state_dict().values()


@pytest.mark.parametrize(
    "name", ["noisy-kfac", "noisy-ekfac", "vogn", "slang", "bbb", "whvi", "mc-dropout", "ensemble", "full"]
)
@pytest.mark.parametrize("kind", ["vision", "recurrent", "groups", "twice", "everything, vision"])
def test_posteriors_train_every_part(name, kind):
    """Weights, and point estimates, move; a replica does not depend on those beside it."""
    *everything, kind = kind.split(", ")
    module, shape = build(kind)
    net = Net(module.float(), trained=name not in ("ensemble", "whvi"), bayesian=everything or "all")
    if everything and name in ("whvi", "mc-dropout"):
        pytest.skip("refused, see below")
    posterior = registry.posterior(name, net, "categorical")
    rng, x = Rng(0), inputs(shape)
    x = x.float() if x.is_floating_point() else x
    batch = Batch(x.repeat(R, 1, *[1] * (x.dim() - 2)), torch.tensor([[0, 1, 1, 0]] * R))
    before = posterior.init(N, R, rng)
    after, info = posterior.update(before, batch, rng)
    assert bool(after.common.alive.all()) and bool(info["nll"].isfinite().all())
    moved = [*zip(before.common.points.values, after.common.points.values, strict=True)]
    assert all(not torch.equal(a, b) for a, b in moved)
    out = net.output(posterior.sample(after, 2, rng), batch.x)
    assert out.shape[:3] == (R, 2 if name != "map" else 1, N) and bool(out.isfinite().all())


def test_point_estimates_descend_by_adam_on_the_likelihood():
    """Two steps, against torch's Adam on the module."""
    module = chain(nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2)).double()
    net, x, y = Net(module, trained=True, bayesian="last"), inputs((3,)), torch.tensor([[0, 1, 1, 0]])
    posterior = registry.posterior("map", net, "categorical", "default", lr=1e-12, points_lr=0.1)
    state = posterior.init(N, 1, Rng(0, dtype=torch.float64))
    optimiser = torch.optim.Adam([*module[0].parameters(), *module[1].parameters()], lr=0.1)
    for _ in range(2):
        state, _ = posterior.update(state, Batch(x, y), Rng(0, dtype=torch.float64))
        optimiser.zero_grad()
        F.cross_entropy(module(x[0]), y[0]).backward()
        optimiser.step()
    names = [point.name for point in net.points]
    assert sorted(names) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    found = dict(zip(names, (v[0, 0] for v in state.common.points.values), strict=True))
    close([found[name] for name in sorted(names)], [dict(module.named_parameters())[n].detach() for n in sorted(names)])


def test_a_replica_is_trained_as_alone():
    module, shape = build("vision")
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    module.layers.layers[0].self_attn.dropout = module.layers.layers[1].self_attn.dropout = 0.0
    posterior = registry.posterior("map", Net(module, trained=True), "categorical", "default")
    x = torch.cat([inputs(shape), inputs(shape, seed=1)])
    batch, rng = Batch(x, torch.tensor([[0, 1, 1, 0], [1, 1, 0, 2]])), Rng(0, dtype=torch.float64)
    state = posterior.init(N, R, rng)
    together, _ = posterior.update(state, batch, rng)
    for r in range(R):
        alone, _ = posterior.update(tree.part(state, slice(r, r + 1)), Batch(*(t[r : r + 1] for t in batch)), rng)
        for a, b in zip(tree.tensors(alone), tree.tensors(tree.part(together, slice(r, r + 1))), strict=True):
            close(a, b)


# Fates -----------------------------------------------------------------------------------------------------


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6))
        self.head = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2))

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.parametrize(
    ("bayesian", "shapes", "points"),
    [
        ("all", [(5, 4), (17, 6), (7, 2)], 2),
        ("last", [(7, 2)], 6),
        ("body.*", [(5, 4), (17, 6)], 4),
        (["head.1", "body.0"], [(5, 4), (7, 2)], 4),
        (nn.Linear, [(17, 6), (7, 2)], 4),
        ([nn.Conv2d, "head.*"], [(5, 4), (7, 2)], 4),
        ("everything", [(5, 4), (17, 6), (1, 12), (7, 2)], 0),
        (["all", nn.LayerNorm], [(5, 4), (17, 6), (1, 12), (7, 2)], 0),
        (["last", "head.0"], [(1, 12), (7, 2)], 4),
        (["last", nn.Parameter], [(1, 12), (1, 16), (1, 4), (1, 96), (1, 6), (7, 2)], 0),
        (lambda name, layer: name.startswith("body") and isinstance(layer, nn.Linear), [(17, 6)], 6),
    ],
)
def test_the_user_chooses_what_gets_a_distribution(bayesian, shapes, points):
    net = Net(Named(), bayesian=bayesian)
    assert list(net.shapes) == shapes and len(net.points) == points and net.frozen == 0
    assert (
        net.output([*net.glorot(1, Rng(0), 1), *net.initial_points(1, Rng(0))], torch.ones(1, 2, 1, 3, 3))
        .isfinite()
        .all()
    )


def test_frozen_parameters_stay_as_they_are():
    module = Named()
    module.body.requires_grad_(False)
    net = Net(module, trained=True)
    assert net.shapes == ((7, 2),) and len(net.points) == 2 and net.frozen == 20 + 102
    assert "and 122 frozen" not in repr(net) or "12 trained as point estimates and 122 frozen" in repr(net)
    for dtype in (torch.float64, torch.float32):
        rng = Rng(0, dtype=dtype)
        out = net.output([*net.initial(1, rng, 1), *net.initial_points(1, rng)], torch.ones(1, 2, 1, 3, 3, dtype=dtype))
        torch.testing.assert_close(out[0, 0].float(), module(torch.ones(2, 1, 3, 3)).detach())


def test_what_nothing_selects_is_one_sentence():
    with pytest.raises(InputError, match=r"bayesian='tail\.\*' selects no layer; .* are body\.0, body\.3, head\.1"):
        Net(Named(), bayesian="tail.*")
    wrongs: list[Any] = ["tail", nn.BatchNorm1d, [], "1.weight"]
    for wrong in wrongs:
        module = chain(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
        with pytest.raises(InputError, match="selects no layer; those that can have a distribution are 0, 2"):
            Net(module, bayesian=wrong if wrong == [] else ["all", wrong])


def test_parameters_besides_weights_start_where_the_module_is_and_have_a_prior_around_no_change():
    module = chain(nn.Linear(3, 4), nn.LayerNorm(4), nn.PReLU(4, init=0.3), nn.Linear(4, 2))
    net, rng = Net(module, bayesian="everything"), Rng(0)
    _, norm, slope, _ = net.glorot(1, rng, 1)
    assert not norm.any() and bool((slope == 0.3).all())
    zero = net.tensors([torch.zeros(1, 1, *shape) for shape in net.shapes])
    assert bool((zero["1.weight"] == 1).all()) and not zero["1.bias"].any() and not zero["2.weight"].any()
    for name in ("bbb", "ensemble"):
        posterior = registry.posterior(name, net, "gaussian")
        start = posterior.sample(posterior.init(N, 1, rng), 1, rng)
        torch.testing.assert_close(start[2], slope, atol=0.2, rtol=0)


def test_linear_functions_of_own_parameters_have_exact_moments():
    """The variance of a prediction that is linear in the parameters, beside J C J^T with a dense Jacobian."""
    module, x = chain(nn.LayerNorm(4), nn.PReLU(1)).double(), inputs((4,)).abs()
    net = Net(module, trained=True, bayesian="everything", outputs=4)
    assert net.shapes == ((1, 8), (1, 1))
    posterior = registry.posterior("full", net, "gaussian", beta=0.5)
    rng = Rng(0, dtype=torch.float64)
    state = posterior.init(N, 1, rng)
    state, _ = posterior.update(state, Batch(x, inputs((4,), seed=1)), rng)
    mean, (_, precision, scale) = posterior.at_mean(state), posterior.gaussian(state)

    def output(*layers):
        return net.output(layers, x)[0, 0]

    rows = torch.cat([j.flatten(2) for j in torch.autograd.functional.jacobian(output, tuple(mean))], 2)
    expected = scale * torch.einsum("bow,wv,bov->bo", rows, oracles.dense(precision)[0].inverse(), rows)
    taps = [net.forward(mean, x)[1](row.expand(1, 1, N, 4)) for row in torch.eye(4, dtype=torch.float64)]
    found = torch.stack([scale * precision.quad(t)[0] for t in taps], 1)
    close(found, expected)


@pytest.mark.parametrize(
    ("name", "bayesian", "message"),
    [
        ("whvi", "everything", "whvi supports weights of layers only; leave other parameters out by bayesian="),
        ("tensor-factorised", ["all", nn.LayerNorm], "tensor-factorised supports weights of layers only"),
        ("gp", "everything", "gp takes only the sizes of a network of dense layers"),
        ("mc-dropout", "everything", "where weights differ between examples, a module's own parameters must be point"),
        ("noisy-kfac", ["2"], "no layer with weights has a distribution: pass the number of outputs, outputs="),
    ],
)
def test_distributions_over_other_parameters_that_are_refused(name, bayesian, message):
    module = chain(nn.Linear(3, 4), nn.LayerNorm(4), nn.PReLU(4), nn.Linear(4, 2))
    with pytest.raises(InputError, match=re.escape(message)):
        posterior = registry.posterior(name, Net(module, bayesian=bayesian), "gaussian")
        rng, x = Rng(0), inputs((3,)).float()
        posterior.update(posterior.init(N, 1, rng), Batch(x, torch.zeros(1, N, 2)), rng)


def test_own_parameters_are_refused_beside_batch_normalisation_and_in_a_loop_of_the_users():
    module = chain(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.PReLU(4), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"'2\.weight' cannot have a distribution beside batch normalisation"):
        Net(module, bayesian="everything")
    module = chain(nn.Linear(3, 4), nn.PReLU(4), nn.Linear(4, 2))
    optimizer = explore.optim.VOGN(module, "categorical", n_data=N, bayesian="everything")
    with pytest.raises(InputError, match=r"no distribution over parameter '1\.weight'"), optimizer.sampled():
        module(torch.ones(2, 3))


def test_large_tables_of_words_need_to_be_named():
    module = nn.Sequential(nn.Embedding(5000, 2), nn.Flatten(), nn.Linear(6, 1))
    assert Net(module).shapes == ((7, 1),) and Net(module, bayesian=["0", "2"]).shapes == ((5000, 2), (7, 1))


def test_layers_that_share_their_weights_are_one_distribution():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight, second.bias = first.weight, first.bias
    module = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), first).double()
    net, rng = Net(module), Rng(0, dtype=torch.float64)
    (w,), x = net.glorot(1, rng, 1), inputs((3,))
    out, pullback = net.forward((w,), x)
    (taps,) = pullback(torch.ones_like(out))

    def loss(w, x):
        own = {"0.weight": w[:-1].mT, "0.bias": w[-1]}
        return functional_call(module, own, (x[None],), tie_weights=True).sum()

    close(torch.einsum("rsbti,rsbto->rsbio", taps.inputs, taps.grads)[0, 0], vmap(grad(loss), (None, 0))(w[0, 0], x[0]))


def test_layers_that_share_a_part_of_their_parameters_are_point_estimates():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    assert len(Net(nn.Sequential(first, second, nn.Linear(3, 2))).points) == 3


# Dropout and several inputs --------------------------------------------------------------------------------


def test_dropout_acts_in_training_only_and_by_its_seed():
    module, shape = build("dropout")
    net, x = Net(module, trained=True), inputs(shape)
    layers = net.initial(1, Rng(0, dtype=torch.float64), 1)
    state = torch.random.get_rng_state()
    close(net.output(layers, x)[0, 0], module(x[0]).detach())
    a, b, c = (net.train_forward(layers, x, seed=seed)[0] for seed in (5, 5, 6))
    assert torch.equal(a, b) and not torch.equal(a, c) and torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(net.train_output(layers, x, seed=5)[0], a)


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.words, self.head = nn.Linear(3, 4), nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, x, ids=None, on=None):
        h = self.dense(x) + torch.where(on[:, None, None], self.words(ids), 0).sum(1)
        return {"scores": self.head(h.tanh()), "hidden": h}


def test_several_inputs_are_rows_of_numbers():
    module = Several()
    batch = {"x": torch.randn(N, 3), "ids": torch.randint(0, 5, (N, 6)), "on": torch.tensor([True, False] * 2)}
    net = Net(module, trained=True, output="scores")
    rows, layers = net.packed(batch | {"none": None}), net.initial(1, Rng(0), 1)
    assert rows.shape == (N, 3 + 6 + 1) and rows.dtype == torch.float32
    expected = module(**batch)["scores"].detach()
    torch.testing.assert_close(net.output(layers, rows[None])[0, 0], expected)
    shorter = batch | {"ids": batch["ids"][:, :2]}
    torch.testing.assert_close(
        net.output(layers, net.packed(shorter)[None])[0, 0], module(**shorter)["scores"].detach()
    )
    assert copy.deepcopy(net).packed(tuple(batch.values())[:2]).shape == (N, 9)
    words = Net(build("recurrent")[0])
    assert words.packed(torch.zeros(2, 3, dtype=torch.int64)).dtype == torch.int64


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ("text", "inputs must be a tensor, or a dict or tuple of tensors; got a str"),
        ((torch.ones(2, 3), None, torch.ones(2)), "input 1 must be a tensor with one entry per example"),
        ({"x": torch.ones(2, 3), "ids": [1, 2]}, "input 'ids' must be a tensor with one entry per example"),
        ({"x": torch.ones(2, 3), "ids": torch.ones(3)}, "input 'ids' must be a tensor with one entry per example"),
        ({"x": torch.ones(2, 3), "ids": torch.full((2,), 2**24 + 1)}, "whole numbers beyond 16777216 beside real ones"),
    ],
)
def test_inputs_that_cannot_be_packed(batch, message):
    with pytest.raises(InputError, match=message):
        Net(Several()).packed(batch)


def test_inputs_of_another_form_are_refused():
    net = Net(Several(), output="scores")
    net.packed({"x": torch.ones(2, 3), "ids": torch.ones(2, 6, dtype=torch.int64), "on": torch.ones(2).bool()})
    with pytest.raises(InputError, match="other shapes; pad to one length"):
        net.packed({"x": torch.ones(2, 3), "ids": torch.ones(2, 5, dtype=torch.int64), "on": torch.ones(2, 2).bool()})
    with pytest.raises(InputError, match=r"inputs have shape \[4\]; pass batches through `packed`"):
        net.output(net.glorot(1, Rng(0), 1), torch.ones(1, 2, 4))
    with pytest.raises(InputError, match="got a dict; choose by output="):
        unnamed = Net(Several())
        rows = unnamed.packed({"x": torch.ones(2, 3), "ids": torch.ones(2, 6).long(), "on": torch.ones(2).bool()})
        unnamed.output(unnamed.glorot(1, Rng(0), 1), rows[None])


def test_samples_and_means_as_modules():
    torch.manual_seed(0)
    module, x = mlp(3, [4], 1), torch.randn(1, N, 3)
    posterior = registry.posterior("noisy-kfac", Net(module, trained=True), "gaussian", "small")
    state = posterior.init(N, 1, Rng(0))
    drawn = posterior.sample_modules(state, 3, Rng(5))
    out = posterior.net.output(posterior.sample(state, 3, Rng(5)), x)
    torch.testing.assert_close(torch.stack([m(x[0]) for m in drawn]).detach(), out[0])
    torch.testing.assert_close(posterior.write_back(state)(x[0]), module(x[0]))
    other = mlp(3, [4], 1)
    torch.testing.assert_close(posterior.write_back(state, other)(x[0]), module(x[0]))
    with pytest.raises(InputError, match="only the weights of one replica"):
        posterior.write_back(posterior.init(N, 2, Rng(0)))
    with pytest.raises(InputError, match="Ensemble has no mean weights; use sample_modules"):
        ensemble = registry.posterior("ensemble", Net(module), "gaussian", "small")
        ensemble.write_back(ensemble.init(N, 1, Rng(0)))
    with pytest.raises(InputError, match="the module has no parameter '0.weight'; pass the module of the network"):
        posterior.write_back(state, nn.Linear(3, 1))


# Fitted models ---------------------------------------------------------------------------------------------


def doubled(model):
    """The model, restored from its saved state."""
    return explore.FittedModel.from_state_dict(model.posterior, model.state_dict())


@pytest.mark.parametrize("members", [1, 2])
def test_a_model_with_point_estimates_and_dropout_learns_and_is_restored(members):
    torch.manual_seed(0)
    x = torch.rand(60, 2)
    y = torch.sin(4 * x[:, 0])
    module = chain(nn.Linear(2, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.05), nn.Linear(16, 1))
    posterior = registry.posterior("noisy-kfac", Net(module), "gaussian", "small", epochs=200, members=members)
    model = explore.FittedModel.fit(posterior, x, y)
    assert float(model.evaluate(x, y)["rmse"]) < 0.5 * float(y.std())
    assert torch.equal(doubled(model).predict(x)[0], model.predict(x)[0])


@pytest.mark.parametrize("bayesian", ["all", "everything"])
def test_a_saved_model_is_restored_with_a_module_built_anew(bayesian):
    """Its recurrent and own parameters begin at other random values."""

    def build(seed):
        torch.manual_seed(seed)
        module = chain(nn.LSTM(2, 3, batch_first=True), Last(), nn.Linear(3, 1))
        return registry.posterior("vogn", Net(module, bayesian=bayesian), "gaussian", epochs=1)

    x, y = torch.rand(8, 4, 2), torch.rand(8)
    model = explore.FittedModel.fit(build(0), x, y)
    again = explore.FittedModel.from_state_dict(build(1), model.state_dict())
    assert torch.equal(again.predict(x)[0], model.predict(x)[0])


def test_a_model_of_tokens_keeps_them_whole():
    torch.manual_seed(0)
    net = Net(Recurrent())
    x = net.packed(torch.randint(1, WORDS, (40, 5)))
    y = (x[:, -1] > 5).long()
    posterior = registry.posterior("noisy-kfac", net, "categorical", "classes", epochs=40)
    with pytest.raises(InputError, match="looks up whole numbers expects raw data. Pass standardise='none'"):
        explore.FittedModel.fit(posterior, x, y)
    model = explore.FittedModel.fit(posterior, x, y, standardise="none")
    assert float(model.evaluate(x, y)["error"]) < 0.2
    assert torch.equal(doubled(model).probabilities(x), model.probabilities(x))
    with pytest.raises(InputError, match="the network looks up whole numbers; pass inputs through its method packed"):
        other = Net(Recurrent())
        other.output((*other.initial(1, Rng(0), 1), *other.initial_points(1, Rng(0))), torch.ones(1, 2, 5))
