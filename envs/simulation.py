"""Simulations of `n` environment copies that step together."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from explore import registry
from explore.core.errors import InputError, check_known

LARGE = 1e6  # rllab's bound on observations
Array = NDArray[Any]
GRAVITY = 10.0
SLOP, ANGULAR_SLOP = 0.005, 2 / 180 * np.pi  # joint errors that Box2D tolerates (m, rad)
MAX_ROTATION = 0.5 * np.pi  # of a body per step


class Shape(NamedTuple):
    """A polygon filled with colour `fill`, or a line if `fill` is None; points [P, 2] in metres."""

    points: Array
    fill: str | None


class Simulation(ABC):
    """A simulation of `n` environment copies. The random numbers of a reset come from the copy's own generator."""

    about: ClassVar[str]  # one line for `explore list envs`
    #: Prefix of the registered name -> description of this variant, and its settings.
    variants: ClassVar[dict[str, tuple[str, dict[str, Any]]]] = {"": ("", {})}
    time_limit: ClassVar[int | None] = 500  # steps after which an episode is truncated; None: after `horizon`
    observation_space: gym.spaces.Box  # of one copy
    action_space: gym.spaces.Space[Any]
    frames_per_second: ClassVar[int] = 20
    view: ClassVar[tuple[float, float, float]]  # centre and half width of the picture, in metres
    horizon: int | None = None  # steps of each episode, if they depend on settings instead of `time_limit`

    def __init__(self, n: int) -> None:
        self.n = n

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Array: ...  # the random numbers [D] of one reset
    @abstractmethod
    def start(self, where: Array, draws: Array) -> None: ...  # new episodes in the copies `where` [M] from draws [M, D]
    # Act in all copies, actions [n, ...]; return rewards [n] and whether the episode has ended [n].
    @abstractmethod
    def step(self, actions: Array) -> tuple[Array, Array]: ...
    @abstractmethod
    def observe(self) -> Array: ...  # observations [n, O], single precision
    @abstractmethod
    def shapes(self, i: int) -> Sequence[Shape]: ...  # a picture of one copy, from back to front


class RigidBodies(Simulation):
    """A simulation of rigid bodies in a plane, moved by one force or torque.

    `bodies` [K, 6, n] has, for each of the K bodies: x and y of the origin, angle, vx and vy of the centre of mass, and
    angular velocity. `sparse` selects the sparse reward of VIME instead of the dense reward of rllab.
    """

    variants: ClassVar = {
        "": ("dense reward, as in rllab", {"sparse": False}),
        "Sparse": ("reward only there, as in VIME", {"sparse": True}),
    }
    limit: ClassVar[float]  # an action of 1 is this force (N) or torque (N m)
    step_size: ClassVar[float] = 0.05  # s
    iterations: ClassVar[tuple[int, int]] = (8, 3)  # of the velocity and position solvers
    frame_skip: ClassVar[int] = 1
    initial: ClassVar[Array]  # positions of the bodies [K, 2]
    observations: ClassVar[int]

    def __init__(self, n: int, sparse: bool) -> None:
        super().__init__(n)
        self.sparse = sparse
        self.bodies = np.zeros((len(self.initial), 6, n))
        self.observation_space = gym.spaces.Box(-LARGE, LARGE, (self.observations,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    @abstractmethod
    def place(self, bodies: Array, draws: Array) -> None: ...  # changes bodies [K, 6, M] by draws [D, M]
    @abstractmethod
    def outcome(self) -> tuple[Array, Array]: ...  # rewards [n] and ends [n] for the current bodies
    @abstractmethod
    def advance(self, force: Array) -> None: ...  # moves the bodies one time step under `force` [n]

    def start(self, where: Array, draws: Array) -> None:
        bodies = np.zeros((len(self.initial), 6, len(where)))
        bodies[:, :2] = self.initial[:, :, None]
        self.place(bodies, draws.T)
        self.bodies[:, :, where] = bodies

    def step(self, actions: Array) -> tuple[Array, Array]:
        force = np.clip(np.asarray(actions, float)[:, 0], -1.0, 1.0) * self.limit
        for _ in range(self.frame_skip):
            self.advance(force)
        return self.outcome()

    def outlines(self, i: int, locals_: Sequence[Array], fills: Sequence[str]) -> list[Shape]:
        """Return the shapes of all bodies of copy `i`; `locals_` has the corners of each body in body coordinates."""
        placed = []
        for (x, y, angle), corners, fill in zip(self.bodies[:, :3, i], locals_, fills, strict=True):
            c, s = np.cos(angle), np.sin(angle)
            placed.append(Shape(corners @ np.array([[c, s], [-s, c]]) + (x, y), fill))
        return placed


def box(width: float, height: float, bottom: float) -> Array:
    """Return the corners [4, 2] of a rectangle centred at x = 0, with its lower edge at y = `bottom`."""
    w = width / 2
    return np.array([(-w, bottom), (w, bottom), (w, bottom + height), (-w, bottom + height)])


def cells(rows: int, columns: int, at: tuple[int, int], fill: str = "peru") -> list[Shape]:
    """Return the squares of a grid that is 1.8 wide and centred at 0, of which the one `at` (row, column) is filled."""
    side = 1.8 / columns
    corners, shapes = box(0.9 * side, 0.9 * side, -side / 2), []
    for row, column in np.ndindex(rows, columns):
        centre = column * side - 0.9 + side / 2, ((rows - 1) / 2 - row) * side
        shapes.append(Shape(corners + centre, fill if (row, column) == at else "lightgrey"))
    return shapes


def simulate(simulation: str, n: int, **settings: Any) -> Simulation:
    """Create a simulation of `n` copies; `simulation` is its class, as "module:Class", and `settings` its arguments."""
    cls = registry.load(simulation, "simulation")
    if not (isinstance(cls, type) and issubclass(cls, Simulation)):
        raise InputError(f'{simulation} is not a subclass of Simulation; pass "module:Class" of one')
    check_known("setting", settings, list(inspect.signature(cls).parameters)[1:])
    return cls(n, **settings)


def solve(a: Array, b: Array, d: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Solve the symmetric 2 x 2 systems [[a, b], [b, d]] p = (x, y) for p; all arguments are [n]."""
    det = a * d - b * b
    return (d * x - b * y) / det, (a * y - b * x) / det


def limited(spin: Array, step_size: float) -> Array:
    """Limit angular velocities `spin` [n] so that no body turns more than Box2D allows in one step."""
    return np.clip(spin, -MAX_ROTATION / step_size, MAX_ROTATION / step_size)


def join(state: Array, correct: Callable[[Array], Array], iterations: int) -> None:
    """Correct the positions `state` [D, n] of n copies in place, by at most `iterations` calls of `correct`.

    `correct` does one iteration in place, and returns a mask of the copies in which a joint was violated. Only
    these copies are corrected further.
    """
    off = np.flatnonzero(correct(state))
    for _ in range(iterations - 1):
        if not off.size:
            return
        some = state[:, off]
        still = correct(some)
        state[:, off] = some
        off = off[still]
