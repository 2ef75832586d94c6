import tracemalloc
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from explore.core.errors import InputError
from explore.vime.spaces import Vectors

NESTED = spaces.Dict(
    {
        "speed": spaces.Box(-1, 1, (2, 3)),
        "gear": spaces.Discrete(4, start=-1),
        "keys": spaces.Tuple((spaces.MultiDiscrete([2, 3], start=[1, 0]), spaces.MultiBinary(3))),
    }
)
GRAPH = spaces.Graph(spaces.Box(-1, 1, (2,)), None)
CHOICE = spaces.OneOf([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])
SPACES = [NESTED, *NESTED.spaces.values(), spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]))]


@pytest.mark.parametrize("space", SPACES, ids=lambda s: type(s).__name__)
def test_vectors_are_gymnasiums(space):
    vectors, batched = Vectors(space, "observations"), batch_space(space, 5)
    batched.seed(0)
    sample = batched.sample()
    each: Any = [spaces.flatten(space, one) for one in iterate(batched, sample)]
    found = vectors.many(sample)
    assert found.dtype == np.float32 and found.shape == (5, vectors.size)
    np.testing.assert_allclose(found, np.stack(each), rtol=1e-6)
    np.testing.assert_array_equal(vectors.one(next(iter(iterate(batched, sample)))), found[:1])


def test_a_vector_is_a_copy():
    values = np.zeros((2, 3), np.float32)
    found = Vectors(spaces.Box(-1, 1, (3,)), "observations").many(values)
    values += 1
    assert not found.any()


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Text(4), spaces.Sequence(NESTED), GRAPH, CHOICE]
)
@pytest.mark.parametrize("inside", [False, True])
def test_what_is_no_vector_is_refused(space, inside):
    with pytest.raises(InputError, match="observations.*(encoder|allowed)"):
        Vectors(spaces.Dict({"part": space}) if inside else space, "observations")


LARGE = [
    spaces.Discrete(20_000),
    spaces.MultiDiscrete([700, 700]),
    spaces.Box(-1, 1, (84, 84, 4)),
    spaces.MultiBinary(2000),
]


@pytest.mark.parametrize("space", LARGE, ids=lambda s: type(s).__name__)
def test_large_vectors_are_refused_and_encoded(space):
    with pytest.raises(
        InputError, match=r"observations have \d+ numbers .*; the dynamics model takes at most 1024; pass an"
    ):
        Vectors(spaces.Dict({"part": space}), "observations")
    with pytest.raises(InputError, match=r"actions have \d+ numbers.* takes at most 1024$"):
        Vectors(space, "actions")
    assert Vectors(space, "observations", lambda batch: np.reshape(batch, (len(batch), -1))[:, :5] * 1.0).size <= 5


def test_a_choice_takes_the_memory_of_its_vectors():
    vectors = Vectors(spaces.Discrete(1024), "observations")
    tracemalloc.start()
    found = vectors.many(np.array([0, 1023]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.sum() == 2 and found[1, 1023] == 1 and peak < 3 * found.nbytes


def mean_colour(images):
    return np.asarray(images).mean((1, 2)) / 255


def test_an_encoder_takes_images():
    vectors = Vectors(spaces.Box(0, 255, (8, 8, 3), np.uint8), "observations", mean_colour)
    assert vectors.size == 3 and vectors.many(np.full((4, 8, 8, 3), 255, np.uint8)).tolist() == [[1.0] * 3] * 4


def test_an_encoder_may_be_a_network():
    """A module, or a function of it, whose outputs have a graph."""
    net = torch.nn.Linear(4, 2)
    for encoder in (net, lambda batch: net(torch.as_tensor(batch))):
        vectors = Vectors(spaces.Box(-1, 1, (4,)), "observations", encoder)
        found = vectors.many(np.eye(4, dtype=np.float32))
        np.testing.assert_allclose(found, (net.weight.T + net.bias).detach().numpy(), rtol=1e-6)


def test_a_module_encodes_images_and_dicts_in_evaluation_mode():
    conv = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.Dropout(0.9)).train()
    vectors = Vectors(spaces.Box(0, 255, (3, 8, 8), np.uint8), "observations", conv)
    image = np.full((4, 3, 8, 8), 255, np.uint8)
    expected = conv[0](torch.as_tensor(image).float()).flatten(1).detach().numpy()
    np.testing.assert_allclose(vectors.many(image), expected, rtol=1e-5)

    class Parts(torch.nn.Module):
        def forward(self, parts):
            return parts["a"] + parts["b"]

    parts = spaces.Dict({name: spaces.Box(-1, 1, (2,)) for name in "ab"})
    vectors = Vectors(parts, "observations", Parts())
    assert vectors.many({"a": np.ones((3, 2)), "b": np.ones((3, 2))}).tolist() == [[2.0, 2.0]] * 3


def test_images_as_actions_need_no_encoder_which_is_for_observations():
    with pytest.raises(InputError, match="actions are images .*takes vectors$"):
        Vectors(spaces.Box(0, 255, (8, 8, 3), np.uint8), "actions")


def test_an_encoder_is_a_function():
    with pytest.raises(InputError, match="encoder is 5; it must be a function, or module:function"):
        Vectors(spaces.Box(-1, 1, (4,)), "observations", 5)  # type: ignore[arg-type]


def test_an_encoder_must_give_vectors():
    with pytest.raises(InputError, match=r"return shape \[\d, D\]"):
        Vectors(spaces.Box(0, 255, (8, 8, 3), np.uint8), "observations", lambda images: images)


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), NESTED, spaces.Tuple([NESTED])])
def test_an_encoder_must_give_a_row_for_each(space):
    def flat(elements):
        return np.concatenate([vectors.many(elements).ravel()])[None]

    vectors, batch = Vectors(space, "observations"), batch_space(space, 3).sample()
    with pytest.raises(InputError, match=rf"return shape \[3, D\], .*; got \[1, {3 * vectors.size}\]"):
        Vectors(space, "observations", flat).many(batch)
    np.testing.assert_array_equal(Vectors(space, "observations", vectors.many).many(batch), vectors.many(batch))


@pytest.mark.parametrize("encoder", [None, lambda batch: np.zeros((len(batch), 0))])
def test_vectors_of_no_number_are_refused(encoder):
    with pytest.raises(InputError, match="observations are empty; the dynamics"):
        Vectors(spaces.Box(-1, 1, (2 if encoder else 0,)), "observations", encoder)


def test_an_encoder_by_name():
    vectors = Vectors(spaces.Box(-1, 1, (2,)), "observations", "numpy:square")
    np.testing.assert_array_equal(vectors.one(np.array([0.5, -1.0])), [[0.25, 1.0]])


BOX = spaces.Box(-1, 1, (2,))
CHOICES = spaces.MultiDiscrete([2, 3], start=[1, 0])


@pytest.mark.parametrize(
    "space, elements, message",
    [
        (spaces.Discrete(4), [0, -1], "observations hold -1; expected whole numbers from 0 to 3"),
        (spaces.Discrete(4), [0, 4], "observations hold 4; expected whole numbers from 0 to 3"),
        (spaces.Discrete(4, start=1), [[1], [0]], "observations hold 0; expected whole numbers from 1 to 4"),
        (spaces.Discrete(4), [0.5, 1], "observations hold 0.5; expected whole numbers from 0 to 3"),
        (spaces.Discrete(4), [np.nan, 1], "observations hold nan; expected whole numbers"),
        (spaces.Discrete(4), [[0, 1], [1, 0]], r"observations have shape \[2, 2\]; expected \[n\]"),
        (CHOICES, [[1, 0], [0, 0]], "observations hold 0; expected whole numbers from 1 to 2"),
        (CHOICES, [[1, 3]], "observations hold 3; expected whole numbers from 0 to 2"),
        (CHOICES, [[1, -1]], "observations hold -1; expected whole numbers from 0 to 2"),
        (CHOICES, [[1]], r"observations have shape \[1, 1\]; expected \[n, 2\]"),
        (spaces.MultiBinary(2), [[0, 2]], "observations hold 2; expected whole numbers from 0 to 1"),
        (spaces.MultiBinary(2), [[0, -1]], "observations hold -1; expected whole numbers from 0 to 1"),
        (BOX, np.zeros((5, 3)), r"observations have shape \[5, 3\]; expected \[n, 2\]"),
        (BOX, np.zeros(2), r"observations have shape \[2\]; expected \[n, 2\]"),
        (BOX, [["a", "b"]], "observations are of type <U1; expected numbers"),
        (BOX, np.zeros((1, 2), complex), "observations are of type complex128; expected numbers"),
        (BOX, [[0, 1], [2]], "observations cannot be converted to an array"),
        (BOX, None, "observations are None; expected an array"),
        (
            spaces.Dict({"a": BOX, "b": BOX}),
            {"a": [[0, 0]], "c": 1},
            r"observations are .*; expected the parts 'a', 'b'",
        ),
        (spaces.Dict({"a": BOX}), np.zeros((1, 2)), "observations are .*; expected the parts 'a'"),
        (spaces.Dict({"a": spaces.Dict({"b": BOX})}), {"a": {}}, r"observations\['a'\] are {}; expected the parts 'b'"),
        (spaces.Dict({"a": BOX}), {"a": [[0, 0, 0]]}, r"observations\['a'\] have shape \[1, 3\]"),
        (
            spaces.Dict({"a": BOX, "b": BOX}),
            {"a": [[0, 0]], "b": [[0, 0]] * 2},
            r"observations\['b'\] are for 2 environments; expected 1",
        ),
        (spaces.Tuple([BOX, BOX]), (np.zeros((1, 2)),), "observations are .*; expected the parts 0, 1"),
    ],
)
def test_what_is_not_of_the_space_is_refused(space, elements, message):
    with pytest.raises(InputError, match=f"^{message}.*. Correct the environment or its declared space"):
        Vectors(space, "observations").many(elements)


def test_an_encoder_is_given_no_elements_without_a_key():
    vectors = Vectors(spaces.Dict({"a": BOX, "b": BOX}), "observations", lambda batch: np.zeros((len(batch["a"]), 1)))
    with pytest.raises(InputError, match="observations are .*; expected the parts 'a', 'b'"):
        vectors.one({"a": [0.0, 0.0]})


def test_single_elements_that_are_not_of_the_space_are_refused():
    for space, element in ((spaces.Discrete(3), -1), (BOX, [0.0]), (NESTED, {"speed": np.zeros((2, 3))}), (BOX, 1.0)):
        with pytest.raises(InputError, match="actions (hold|have|are)"):
            Vectors(space, "actions").one(element)


def test_another_number_of_elements_is_refused():
    with pytest.raises(InputError, match="actions are for 2 environments; expected 3"):
        Vectors(BOX, "actions").many(np.zeros((2, 2)), 3)


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2, 3)), spaces.Box(-1, 1, ()), spaces.Discrete(3), CHOICES])
def test_stable_baselines3s_shapes_are_taken(space):
    """Its buffers flatten arrays of several axes, and give single numbers an axis."""
    vectors, batch = Vectors(space, "actions"), np.stack([np.asarray(space.sample()) for _ in range(4)])
    np.testing.assert_array_equal(vectors.many(batch.reshape(4, -1)), vectors.many(batch))


def test_chain_actions():
    env = gym.make("explore.envs:explore/Chain-v0")
    assert Vectors(env.action_space, "actions").many(np.array([1, 0, 1])).tolist() == [[0, 1], [1, 0], [0, 1]]
