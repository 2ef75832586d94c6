"""Swing-up of a pole on a cart: rllab's CartpoleSwingup and VIME's sparse version of it.

Duan et al. 2016, "Benchmarking Deep Reinforcement Learning for Continuous Control"; Houthooft et al. 2016, "VIME".
"""

from collections.abc import Sequence

import numpy as np

from explore.core.errors import check_range, one_of
from explore.envs import simulation
from explore.envs.simulation import ANGULAR_SLOP, GRAVITY, SLOP, Array, RigidBodies, Shape, box

WIDTH, HEIGHT = 4 / 12**0.5, 3 / 12**0.5
RAIL = -0.1  # rllab's rail joins the centres of track and cart, so the cart drops to it from HEIGHT / 2
CART_MASS, POLE_MASS = 1.0, 0.1
CART_INERTIA = CART_MASS * (WIDTH**2 + HEIGHT**2) / 12
POLE_INERTIA = POLE_MASS * (0.1**2 + 1) / 12  # about its centre of mass, half a metre from the hinge


class CartPoleSwingup(RigidBodies):
    """A pole on a cart, swung up by a force of up to 10 N on the cart.

    Observations: x and velocity of the cart, angle (0 is up) and angular velocity of the pole. Sparse reward: 1 if
    cos(angle) > threshold. Dense reward: cos(angle), and -100 for leaving the track. The episode ends if abs(x) > 3.
    With `reset="rllab"`, cart and pole start apart, and the first step jolts them together; "consistent" avoids this.
    """

    about = "swing a pole up on a cart and keep it there"
    limit = 10.0
    initial = np.array([(0, HEIGHT / 2), (0, HEIGHT)])
    observations = 4
    view = (0.0, 0.4, 4.0)

    def __init__(self, n: int = 1, sparse: bool = True, threshold: float = 0.8, reset: str = "rllab") -> None:
        super().__init__(n, sparse)
        if reset not in ("rllab", "consistent"):
            raise one_of("reset", reset, ("rllab", "consistent"))
        check_range("threshold", threshold, "[-1, 1)")
        self.threshold, self.reset = threshold, reset

    def draw(self, rng: np.random.Generator) -> Array:
        return rng.random(4)

    def place(self, bodies: Array, draws: Array) -> None:
        x, v, angle, spin = (2 * draws - 1) * np.array([[1], [2], [1], [3]]) + np.array([[0], [0], [np.pi], [0]])
        cart, pole = bodies
        cart[0], cart[3] = x, v
        pole[2], pole[5] = angle, spin
        if self.reset == "consistent":
            cart[1], pole[0], pole[1] = RAIL, x, RAIL + HEIGHT / 2
            pole[3] = v - 0.5 * spin * np.cos(angle)
            pole[4] = -0.5 * spin * np.sin(angle)

    def advance(self, force: Array) -> None:
        """Take one time step as Box2D does: gravity, force, exact joint impulses, Euler step, position correction."""
        h, (cart, pole) = self.step_size, self.bodies
        x, angle = cart[0], pole[2]
        rx, ry = 0.5 * np.sin(angle), -0.5 * np.cos(angle)  # from the pole's centre of mass to the hinge
        cx, cy = pole[0] - rx, pole[1] - ry
        u = cart[3] + h / CART_MASS * force
        vx, vy, spin = pole[3], pole[4] - h * GRAVITY, pole[5]

        # The hinge moves with the cart, which the track restricts to the x axis: impulse (px, py) on the pole.
        kxx = 1 / POLE_MASS + 1 / CART_MASS + ry * ry / POLE_INERTIA
        kyy = 1 / POLE_MASS + rx * rx / POLE_INERTIA
        px, py = simulation.solve(kxx, -rx * ry / POLE_INERTIA, kyy, u - vx + spin * ry, -vy - spin * rx)
        u = u - px / CART_MASS
        vx, vy = vx + px / POLE_MASS, vy + py / POLE_MASS
        spin = simulation.limited(spin + (rx * py - ry * px) / POLE_INERTIA, h)

        state = np.stack([x + h * u, cart[1], cx + h * vx, cy + h * vy, angle + h * spin])
        simulation.join(state, _correct, self.iterations[1])
        cart[0], cart[1], cx, cy, angle = state
        cart[3] = u
        pole[0], pole[1] = cx + 0.5 * np.sin(angle), cy - 0.5 * np.cos(angle)
        pole[2], pole[3], pole[4], pole[5] = angle, vx, vy, spin

    def outcome(self) -> tuple[Array, Array]:
        done = np.abs(self.bodies[0, 0]) > 3
        up = np.cos(self.bodies[1, 2])
        if self.sparse:
            return np.where(done, 0.0, up > self.threshold), done
        return np.where(done, -100.0, up), done

    def observe(self) -> Array:
        cart, pole = self.bodies
        return np.stack([cart[0], cart[3], pole[2], pole[5]], axis=1, dtype=np.float32, casting="same_kind")

    def shapes(self, i: int) -> Sequence[Shape]:
        track = Shape(np.array([(-3, RAIL), (3, RAIL)]), None)
        bodies = (box(WIDTH, HEIGHT, -HEIGHT / 2), box(0.1, 1, 0))
        return [track, *self.outlines(i, bodies, ("steelblue", "peru"))]


def _correct(state: Array) -> Array:
    """Correct `state` [5, M] in place by one Box2D iteration, hinge first; return whether a joint was violated, [M]."""
    x, y, cx, cy, angle = state
    arm = HEIGHT / 2
    rx, ry = 0.5 * np.sin(angle), -0.5 * np.cos(angle)
    ex, ey = cx + rx - x, cy + ry - y - arm
    masses = 1 / POLE_MASS + 1 / CART_MASS
    kxx = masses + arm * arm / CART_INERTIA + ry * ry / POLE_INERTIA
    kyy = masses + rx * rx / POLE_INERTIA
    px, py = simulation.solve(kxx, -rx * ry / POLE_INERTIA, kyy, -ex, -ey)
    off = ex * ex + ey * ey > SLOP * SLOP
    off |= np.abs(y - py / CART_MASS - RAIL) > SLOP
    off |= np.abs(px) * arm / CART_INERTIA > ANGULAR_SLOP
    x -= px / CART_MASS
    y[:] = RAIL
    cx += px / POLE_MASS
    cy += py / POLE_MASS
    angle += (rx * py - ry * px) / POLE_INERTIA
    return off
