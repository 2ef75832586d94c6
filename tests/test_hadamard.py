"""The fast transform against scipy's Hadamard matrix."""

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard as matrix

from explore.core.errors import InputError
from explore.core.hadamard import hadamard
from explore.core.rng import Rng


def numbers(*shape):
    return Rng(0, dtype=torch.float64).normal(*shape)


@pytest.mark.parametrize("bits", range(14))
def test_equals_the_matrix(bits):
    d = 2**bits
    rows = np.arange(d) if d <= 256 else np.random.default_rng(0).permutation(d)[:100]
    units = torch.zeros(len(rows), d, dtype=torch.float64)
    units[range(len(rows)), rows] = 1
    expected = torch.as_tensor(matrix(d, dtype=np.int8)[rows]).double()
    torch.testing.assert_close(hadamard(units, orthonormal=False), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(hadamard(units), expected / d**0.5, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("d", [4, 128, 4096])
def test_is_its_own_inverse(d):
    x = numbers(3, 2, d)
    torch.testing.assert_close(hadamard(hadamard(x)), x, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("d", [1, 8, 256])
def test_gradients(d):
    x, fast = numbers(2, d).requires_grad_(), d > 8
    assert torch.autograd.gradcheck(hadamard, x, fast_mode=fast)
    assert torch.autograd.gradcheck(lambda z: hadamard(z, orthonormal=False), x, fast_mode=fast)
    assert torch.autograd.gradgradcheck(lambda z: hadamard(z) ** 3, x, fast_mode=fast)
    with torch.no_grad():
        assert torch.equal(hadamard(x), hadamard(x.detach()))


@pytest.mark.parametrize("d", [8, 256])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_keeps_the_type(d, dtype, error):
    x = numbers(4, d)
    y = hadamard(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), hadamard(x), rtol=error, atol=error)


@pytest.mark.parametrize("d", [8, 256])
def test_any_leading_shape_and_layout(d):
    x = numbers(3, d, 5)
    expected = torch.einsum("adb,de->abe", x, hadamard(torch.eye(d, dtype=torch.float64)))
    before = x.clone()
    torch.testing.assert_close(hadamard(x.transpose(1, 2)), expected)
    torch.testing.assert_close(hadamard(x[0, :, 0]), expected[0, 0])
    same = x[:, :, 0].unsqueeze(1).expand(-1, 4, -1)
    torch.testing.assert_close(hadamard(same), expected[:, :1].expand(-1, 4, -1))
    assert hadamard(x.transpose(1, 2)[:0]).shape == (0, 5, d)
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", [(2, 12), (0,), ()])
def test_refuses_what_is_no_power_of_two(shape):
    with pytest.raises(InputError, match="power of two"):
        hadamard(torch.zeros(shape))


def test_refuses_integers():  # 1 / sqrt(D) is no integer
    with pytest.raises(InputError, match="floating-point numbers; got torch.int64"):
        hadamard(torch.arange(4))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("bits", [0, 1, 5, 6, 10, 13, 15, 16])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_a_gpu_gives_the_same(bits, dtype, error):
    x = numbers(5, 2**bits).to(dtype)
    y = hadamard(x.cuda())
    assert y.dtype == dtype
    torch.testing.assert_close(y.cpu().double(), hadamard(x.double()), rtol=error, atol=error)
    y = hadamard(x.cuda(), orthonormal=False)
    torch.testing.assert_close(y.cpu().double() / 2 ** (bits / 2), hadamard(x.double()), rtol=error, atol=error)
