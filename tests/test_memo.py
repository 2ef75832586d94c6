"""A cache of the last result of a function of tensors."""

import gc

import torch

from explore.core.memo import Memo


def test_results_are_reused_only_for_the_same_unchanged_tensors():
    memo, calls = Memo[float](), list[float]()

    def of(tensor, more=0):
        def compute():
            calls.append(float(tensor.sum()))
            return calls[-1]

        return memo.of([tensor], more, compute)

    x = torch.ones(2)
    assert [of(x), of(x)] == [2.0, 2.0] and len(calls) == 1
    assert of(x.clone()) == 2.0 and len(calls) == 2  # equal, but another tensor
    of(x)
    x += 1
    assert of(x) == 4.0
    of(x, more=1)
    assert len(calls) == 5


def test_nothing_is_kept_of_tensors_with_a_gradient_or_of_inference_mode():
    memo, x = Memo[torch.Tensor](), torch.ones(2)
    assert not memo.of([x], 0, x.sum).requires_grad
    x.requires_grad_()
    for _ in range(2):
        memo.of([x], 0, x.sum).backward()  # a graph that was kept could not be used twice
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]
    with torch.inference_mode():
        y = torch.ones(2)
        assert memo.of([y], 0, y.sum) == 2


def test_a_result_is_dropped_with_its_tensors():
    memo, x = Memo[str](), torch.ones(2)
    memo.of([x], 0, lambda: "result")
    assert memo._last is not None
    del x
    gc.collect()
    assert memo._last is None
