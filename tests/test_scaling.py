"""Standard scores."""

import math

import numpy as np
import pytest
import torch

from explore.core.errors import InputError
from explore.learning.scaling import UNSCALED, Standardiser, bounded

double = torch.float64


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=double)


@pytest.mark.parametrize("shape", [(7, 2), (3, 7, 2)])
def test_standardiser(shape):
    x = 5 + 3 * normal(*shape)
    standardiser = Standardiser.fit(x)
    z = standardiser.apply(x, double)
    torch.testing.assert_close(z.mean(-2), torch.zeros_like(z[..., 0, :]), rtol=0, atol=1e-14)
    torch.testing.assert_close(z.square().mean(-2), torch.ones_like(z[..., 0, :]))
    torch.testing.assert_close(standardiser.undo(z), x)
    assert torch.equal(UNSCALED.apply(x, double), x) and torch.equal(UNSCALED.undo(x), x)


@pytest.mark.parametrize("dtype", [torch.float32, double])
@pytest.mark.parametrize("shape", [(101, 4), (3, 101, 4)])
def test_the_standardiser_of_chunks_is_that_of_all(shape, dtype):
    x = (5 + 3 * normal(*shape)).to(dtype)
    x[..., 2], x[..., :40, 3], x[..., 40:, 3] = 0.998, 1.0, 2.0  # one constant, one so in each chunk but not in all
    whole, parts = Standardiser.fit(x), Standardiser.of(lambda: (x[..., i : i + 40, :] for i in (0, 40, 80)))
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5 if dtype == torch.float32 else 1e-13, atol=0)
    torch.testing.assert_close(
        whole.scale.double(),
        x.double()
        .std(-2, correction=0, keepdim=True)
        .where(torch.tensor([True, True, False, True]), torch.tensor(1.0, dtype=double)),
    )


def test_a_constant_column_becomes_zero():
    x = torch.full((1, 1000, 1), 0.998, dtype=double)
    assert x.numpy().std() > 0  # the trap: rounding
    standardiser = Standardiser.fit(x)
    assert standardiser.scale == 1
    assert not standardiser.apply(x, double).any() and standardiser.undo(torch.zeros(1, 1, 1, dtype=double)) == 0.998


def test_standardiser_needs_an_example():
    with pytest.raises(InputError, match="at least 1"):
        Standardiser.fit(torch.empty(0, 2))


@pytest.mark.parametrize("factor", [1e155, 1e300, 1e-155, 1e-300])
@pytest.mark.parametrize("shape", [(7, 2), (3, 7, 2)])
def test_columns_that_double_precision_cannot_square_are_refused(factor, shape):
    values = normal(*shape) * torch.tensor([1, factor], dtype=double)
    with pytest.raises(InputError, match=r"column 2 ranges from .*; rescale it .* between 1e-150 and 1e\+150"):
        Standardiser.fit(values)
    mean, scale = Standardiser.fit(torch.full((1, 3, 1), factor, dtype=double))  # constant: nothing is squared
    assert (mean == factor).all() and (scale == 1).all()


@pytest.mark.parametrize("factor", [1e30, 1e-30, 1e-44])
def test_columns_that_single_precision_cannot_square(factor):
    values = torch.tensor([[[1.0, 2.0], [3.0, 3.0], [4.0, 7.0]]])
    ordinary = Standardiser.fit(values)
    values[..., 1] *= factor
    mean, scale = Standardiser.fit(values)
    assert torch.equal(mean[..., 0], ordinary.mean[..., 0]) and torch.equal(scale[..., 0], ordinary.scale[..., 0])
    z = ((values - mean) / scale)[..., 1]
    assert z.isfinite().all() and (factor < 1e-40 or abs(float(z.square().mean()) - 1) < 1e-5)


def test_scores_that_a_type_cannot_hold_are_refused():
    scale = Standardiser.fit(normal(3, 1))
    far = torch.tensor([[1e60]], dtype=double)
    assert scale.apply(far, double).isfinite().all()
    with pytest.raises(
        InputError,
        match="an example is too far from the others to be standardised in torch.float32: it overflows",
    ):
        scale.apply(far, torch.float32)


def test_a_constant_column_may_be_without_effect():
    x = normal(3, 7, 2)
    x[..., 1] = 101325.0
    standardiser = Standardiser.fit(x, math.inf)
    assert standardiser.scale.isinf().flatten().tolist() == [False, True] * 3
    other = x.clone()
    other[..., 1] = 200000.0
    assert torch.equal(standardiser.apply(other, double), standardiser.apply(x, double))


def test_robust_scales_are_those_of_quantiles_and_rare_values():
    x = normal(1, 5000, 6).double()
    x[..., 1] = 7.0  # constant
    x[..., 2] = (x[..., 2] > 0).double()
    x[..., 3] = 0.0
    x[0, :3, 3] = torch.tensor([1.0, 1.0, 1.0])  # rare
    x[..., 4] *= 1e-3
    x[..., 5] = torch.where(x[..., 5] > 2, 1e4 + x[..., 5], 0.0)  # rare, and large
    scale = Standardiser.robust(x).scale[0, 0]
    quantiles = np.quantile(x[0].numpy(), [0.05, 0.95], 0)
    expected = (quantiles[1] - quantiles[0]) / 3.29
    expected[[2, 3]], expected[5] = 1 / 3.29, 1e4 / 3.29
    expected[1] = np.median(expected[[0, 2, 3, 4, 5]])
    np.testing.assert_allclose(scale.numpy(), expected, rtol=1e-3)
    np.testing.assert_allclose(Standardiser.robust(x).mean[0, 0, [0, 2]], x[0].mean(0)[[0, 2]], atol=1e-2)
    assert (Standardiser.robust(1000 * x).scale[0, 0, 1] * 3.29).item() == pytest.approx(1.0)  # at most a step of one


def test_robust_scales_do_not_follow_an_outlier():
    x = normal(1, 500, 3)
    before = Standardiser.robust(x)
    x[0, 0] = torch.tensor([1e6, -1e30, 3e38])
    after = Standardiser.robust(x)
    torch.testing.assert_close(after.scale, before.scale, rtol=0.05, atol=0)
    torch.testing.assert_close(after.mean, before.mean, rtol=0, atol=0.2)
    assert bounded((x - after.mean) / after.scale).abs().max() < 110


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_robust_scales_of_extreme_numbers_are_finite_and_positive(dtype):
    most = torch.finfo(dtype).max
    for values in ([[0.0]], [[most], [-most], [0.0]], [[1e-45], [0.0]]):
        mean, scale = Standardiser.robust(torch.tensor([values], dtype=dtype))
        assert mean.isfinite().all() and scale.isfinite().all() and (scale > 0).all()


def test_bounded_scores_keep_their_order():
    scores = torch.tensor([-torch.inf, -1e30, -11.0, -10.0, 0.3, 10.0, 10.5, 1e6, torch.inf])
    found = bounded(scores)
    assert torch.equal(found[3:6], scores[3:6]) and (found.diff() > 0).all() and found.isfinite().all()
    assert found[7] == pytest.approx(10 + math.log(1e6 - 9))


def test_standard_scores_of_what_is_measured():
    """Each replica's columns have the mean and deviation of the values that they have; one may be constant."""
    rng = np.random.default_rng(0)
    values = rng.normal(3, 2, (2, 50, 3))
    values[:, :, 2] = 0.1
    values[rng.random(values.shape) < 0.4] = np.nan
    mean, scale = Standardiser.fit_measured(torch.from_numpy(values))
    np.testing.assert_allclose(mean[:, 0], np.nanmean(values, 1), rtol=1e-12)
    np.testing.assert_allclose(scale[:, 0, :2], np.nanstd(values, 1)[:, :2], rtol=1e-12)
    assert (scale[:, 0, 2] == 1).all() and (mean[:, 0, 2] == 0.1).all()
    values[1, :, 0] = np.nan
    with pytest.raises(InputError, match="a target has no measured value. Every target needs at least one"):
        Standardiser.fit_measured(torch.from_numpy(values))
