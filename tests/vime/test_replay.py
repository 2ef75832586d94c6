import pytest
import torch

from explore.vime.dynamics import Replay


def rows(*values):
    return torch.tensor([[float(v)] for v in values])


def filled(*batches, capacity=5):
    replay = Replay(capacity, 1, 1)
    for batch in batches:
        replay.add(rows(*batch), rows(*(v + 100 for v in batch)))
    return replay


@pytest.mark.parametrize(
    "batches, kept",
    [([(0, 1)], [0, 1]), ([(0, 1, 2), (3, 4, 5, 6)], [2, 3, 4, 5, 6]), ([range(12)], [7, 8, 9, 10, 11])],
)
def test_first_in_first_out(batches, kept):
    replay = filled(*batches)
    inputs, following = replay.last(len(replay))
    assert inputs.flatten().tolist() == kept and (following == inputs + 100).all()
    assert sorted(replay.inputs.flatten().tolist()) == kept and (replay.next == replay.inputs + 100).all()


def test_last_is_the_newest():
    assert filled((0, 1, 2), (3, 4, 5, 6)).last(3)[0].flatten().tolist() == [4, 5, 6]


def test_restored_with_every_transition_in_its_row():
    replay, again = filled((0, 1, 2), (3, 4, 5, 6)), Replay(5, 1, 1)
    again.load_state_dict(replay.state_dict())
    assert torch.equal(again.inputs, replay.inputs) and torch.equal(again.next, replay.next)
    for each in (replay, again):
        each.add(rows(7, 8), rows(107, 108))
    assert again.total == 9 and torch.equal(again.inputs, replay.inputs)
