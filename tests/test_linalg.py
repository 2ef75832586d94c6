"""Linear algebra that gives up on one matrix at a time."""

import pytest
import torch

from explore.core.linalg import basis, eigh, inverse_root, inverse_triangle, product, triangle_times
from tests.tape import no_host_reads


def positive(r, n, dtype=torch.float64):
    x = torch.randn(r, n, n, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return x @ x.mT + 0.1 * torch.eye(n, dtype=dtype)


def close(actual, expected, rtol=1e-9):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-10)


@pytest.mark.parametrize("lead", [(), (3,)])
def test_inverse_root(lead):
    matrix = positive(3, 4) if lead else positive(1, 4)[0]
    root, ok = inverse_root(matrix)
    assert ok.all() and ok.shape == lead
    close(root.mT @ root, torch.linalg.inv(matrix))
    close(root, root.tril())


BAD = {
    "nan": torch.full((4, 4), torch.nan),
    "one nan": torch.eye(4).index_put((torch.tensor(2), torch.tensor(1)), torch.tensor(torch.nan)),
    "negative": -torch.eye(4),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_matrix_leaves_the_others_bits_alone(bad):
    matrix = positive(3, 4)
    healthy, _ = inverse_root(matrix)
    matrix[1] = BAD[bad]
    root, ok = inverse_root(matrix)
    assert ok.tolist() == [True, False, True]
    assert torch.equal(root[[0, 2]], healthy[[0, 2]])
    assert torch.equal(root[1], torch.eye(4, dtype=torch.float64))


def test_a_singular_matrix_is_mended_with_the_smallest_jitter():
    matrix = positive(2, 3)
    healthy, _ = inverse_root(matrix)
    matrix[1] = torch.diag(torch.tensor([3.0, 3.0, -1e-9]))
    root, ok = inverse_root(matrix)
    assert ok.all() and torch.equal(root[0], healthy[0])
    close(torch.linalg.inv(root[1].mT @ root[1]), matrix[1] + 2e-6 * torch.eye(3), rtol=1e-6)


def test_eigh_and_one_bad_matrix():
    matrix = positive(3, 4)
    matrix[1, 0, 0] = torch.nan
    values, vectors, ok = eigh(matrix)
    assert ok.tolist() == [True, False, True]
    assert values.isfinite().all() and vectors.isfinite().all()
    for r in (0, 2):
        close(vectors[r] @ torch.diag(values[r]) @ vectors[r].mT, matrix[r])


def test_eigh_tries_again_in_double(monkeypatch):
    torch_eigh = torch.linalg.eigh

    def stubborn(matrix):
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("did not converge")
        return torch_eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", stubborn)
    matrix = positive(2, 3, torch.float32)
    values, vectors, ok = eigh(matrix)
    assert ok.all() and values.dtype == vectors.dtype == torch.float32
    torch.testing.assert_close(vectors @ torch.diag_embed(values) @ vectors.mT, matrix, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lead", [(3,), (3, 1)])
def test_a_matrix_that_does_not_converge_changes_no_bit_of_the_others(monkeypatch, lead):
    torch_eigh = torch.linalg.eigh
    matrix = positive(3, 4, torch.float32).view(*lead, 4, 4)
    expected = torch_eigh(matrix)
    matrix[1] = 7 * torch.eye(4)

    def stubborn(matrix):
        if (matrix[..., 0, 0] == 7).any():
            raise torch.linalg.LinAlgError("did not converge")
        return torch_eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", stubborn)
    values, vectors, ok = eigh(matrix)
    assert ok.shape == lead and ok.flatten().tolist() == [True, False, True]
    for r in (0, 2):
        assert torch.equal(values[r], expected[0][r]) and torch.equal(vectors[r], expected[1][r])
    close(vectors[1] @ vectors[1].mT, torch.eye(4).expand_as(vectors[1]))


@pytest.mark.parametrize("shape", [(3, 40, 7, 1), (3, 40, 7, 15), (3, 15, 7, 1), (3, 4, 40, 30), (1, 16, 1, 2)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_product_of_narrow_matrices(shape, turned):
    n, i, j, o = shape
    a, b, plus = (positive(n, 40)[:, :rows, :columns] for rows, columns in ((i, j), (j, o), (1, o)))
    if turned:  # strides do not matter
        a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
    expected = torch.einsum("nij,njo->nio", a, b)
    close(product(a, b), expected)
    close(product(a, b, plus), expected + plus)


@pytest.mark.parametrize("n", [5, 1030])
@pytest.mark.parametrize("width", [3, 20])
def test_a_product_with_a_triangle(n, width):
    lower, x = positive(2, n).tril(), positive(2, n)[..., :width]
    close(triangle_times(lower, x, upper=False), lower @ x)
    close(triangle_times(lower.mT, x, upper=True), lower.mT @ x)


@pytest.mark.parametrize("size", [1, 2, 30])
def test_the_inverse_of_a_triangle(size):
    root = torch.linalg.cholesky(positive(4, size))
    close(inverse_triangle(root), root.inverse())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("n", [32, 33, 256, 257])
def test_a_gpu_decomposes_small_and_large_matrices(n):
    matrix = positive(3, n).cuda()
    matrix[1, 0, 0] = torch.nan
    values, vectors, ok = eigh(matrix)
    assert ok.tolist() == [True, False, True] and values.is_cuda
    close(vectors[ok] * values[ok].unsqueeze(1) @ vectors[ok].mT, matrix[ok])


def projected(y, q):
    """y on the columns of q."""
    return (q.double() @ torch.linalg.pinv(q.double()) @ y.double()).to(y)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6])
def test_a_device_finds_the_basis_of_a_qr_decomposition(spread):
    y = torch.randn(3, 30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = y @ torch.diag(spread ** torch.linspace(0, 1, 4, dtype=torch.float64))
    with no_host_reads():
        q = basis(y)
    close(q.mT @ q, torch.eye(4, dtype=torch.float64).expand(3, 4, 4), 1e-6)
    for own in (q, basis(y)):
        torch.testing.assert_close(projected(y, own), y, rtol=1e-6, atol=1e-9 * spread)


@pytest.mark.parametrize("scale", [1e19, 1e-22])
def test_the_basis_of_what_single_precision_cannot_square(scale):
    y = torch.randn(3, 30, 4, generator=torch.Generator().manual_seed(0)) * scale
    with no_host_reads():
        q = basis(y)
    torch.testing.assert_close(q.mT @ q, torch.eye(4).expand(3, 4, 4), rtol=0, atol=1e-5)
    torch.testing.assert_close(projected(y, q), y, rtol=1e-4, atol=1e-5 * scale)


def test_a_device_finds_a_basis_of_what_lacks_rank():
    y = torch.randn(3, 30, 4, generator=torch.Generator().manual_seed(0))
    y[0, :, 1], y[1, :, 1], y[2] = 0.0, y[1, :, 0], 0.0
    with no_host_reads():
        q = basis(y)
    assert q.isfinite().all()
    torch.testing.assert_close(projected(y, q), y, rtol=1e-5, atol=1e-5)
