"""Two links with a motor between them: rllab's DoublePendulum and VIME's sparse version of it.

Duan et al. 2016, "Benchmarking Deep Reinforcement Learning for Continuous Control"; Houthooft et al. 2016, "VIME".
"""

from collections.abc import Sequence

import numpy as np

from explore.core.errors import check_range
from explore.envs.simulation import GRAVITY, SLOP, Array, RigidBodies, Shape, box, join, limited, solve

MASS = 0.5  # of a link of 1 m
INERTIA = MASS * (0.1**2 + 1) / 12  # about its centre
ABOUT_END = INERTIA + MASS / 4


class DoublePendulum(RigidBodies):
    """Two hanging links, swung up by a torque of up to 50 N m between them; episodes never terminate.

    Observations: for each link, sine and cosine of the angle (0 hangs down), and angular velocity. Dense reward: minus
    the distance (m) of the tip from (0, 2); as in rllab, the x offset of the second link has the wrong sign. Sparse
    reward: 1 if this distance is below the threshold, which is 1 in VIME's code and 0.1 in VIME's paper.
    """

    about = "swing two links up by the joint between them"
    limit = 50.0
    step_size, iterations, frame_skip = 0.01, (20, 20), 2
    frames_per_second = 50
    initial = np.array([(0.0, 0.0), (0.0, -1.0)])
    observations = 6
    view = (0.0, 0.0, 2.5)

    def __init__(self, n: int = 1, sparse: bool = True, threshold: float = 1.0) -> None:
        super().__init__(n, sparse)
        check_range("threshold", threshold, "(0, inf)")
        self.threshold = threshold

    def draw(self, rng: np.random.Generator) -> Array:
        return rng.standard_normal(4)

    def place(self, bodies: Array, draws: Array) -> None:
        bodies[:, 2] = 0.1 * draws[:2]
        bodies[:, 5] = 0.01 * draws[2:]

    def advance(self, force: Array) -> None:
        """Take one time step as Box2D does: gravity, motor, exact joint impulses, Euler step, position correction."""
        h, (one, two) = self.step_size, self.bodies
        a1, a2 = one[2], two[2]
        s1, c1, s2, c2 = np.sin(a1), np.cos(a1), np.sin(a2), np.cos(a2)  # (c, s): where a link's end moves
        spin1, spin2 = one[5] - h / INERTIA * force, two[5] + h / INERTIA * force
        vx, vy = two[3], two[4] - h * GRAVITY
        along = one[3] * c1 + (one[4] - h * GRAVITY) * s1
        spin1 = (INERTIA * spin1 + 0.5 * MASS * along) / ABOUT_END  # link 1 turns about the origin

        # The top of link 2 moves with the end of link 1: impulse (px, py) on link 2.
        ex, ey = vx - 0.5 * spin2 * c2 - spin1 * c1, vy - 0.5 * spin2 * s2 - spin1 * s1
        k1, k2 = 1 / ABOUT_END, 0.25 / INERTIA
        kxx, kyy = 1 / MASS + k1 * c1 * c1 + k2 * c2 * c2, 1 / MASS + k1 * s1 * s1 + k2 * s2 * s2
        px, py = solve(kxx, k1 * c1 * s1 + k2 * c2 * s2, kyy, -ex, -ey)
        vx, vy = vx + px / MASS, vy + py / MASS
        spin1 = spin1 - (c1 * px + s1 * py) / ABOUT_END
        spin2 = spin2 - 0.5 * (c2 * px + s2 * py) / INERTIA
        ux, uy = 0.5 * spin1 * c1, 0.5 * spin1 * s1
        spin1, spin2 = limited(spin1, h), limited(spin2, h)

        x1, y1, turned1 = one[0] + 0.5 * s1 + h * ux, one[1] - 0.5 * c1 + h * uy, a1 + h * spin1
        x2, y2, turned2 = two[0] + 0.5 * s2 + h * vx, two[1] - 0.5 * c2 + h * vy, a2 + h * spin2
        state = np.stack([x1, y1, turned1, x2, y2, turned2])
        join(state, _correct, self.iterations[1])
        for link, (x, y, angle), velocity in ((one, state[:3], (ux, uy, spin1)), (two, state[3:], (vx, vy, spin2))):
            link[0], link[1], link[2] = x - 0.5 * np.sin(angle), y + 0.5 * np.cos(angle), angle
            link[3], link[4], link[5] = velocity

    def outcome(self) -> tuple[Array, Array]:
        x, y, angle = self.bodies[1, :3]
        distance = np.hypot(x - np.sin(angle), y - np.cos(angle) - 2)
        reward = (distance < self.threshold).astype(float) if self.sparse else -distance
        return reward, np.zeros(self.n, bool)

    def observe(self) -> Array:
        angle, spin = self.bodies[:, 2], self.bodies[:, 5]
        rows = np.stack([np.sin(angle), np.cos(angle), spin], axis=1)  # [2, 3, n]
        return rows.reshape(6, self.n).T.astype(np.float32)

    def shapes(self, i: int) -> Sequence[Shape]:
        turn = np.linspace(0, 2 * np.pi, 60)
        target = Shape(self.threshold * np.stack([np.cos(turn), np.sin(turn)], axis=1) + (0, 2), None)
        return [target, *self.outlines(i, [box(0.1, 1, -1)] * 2, ("steelblue", "peru"))]


def _correct(state: Array) -> Array:
    """Correct `state` [6, M] by one Box2D iteration, lower joint first; return whether a joint was violated, [M]."""
    x1, y1, a1, x2, y2, a2 = state
    px1, py1 = 0.5 * np.sin(a1), -0.5 * np.cos(a1)  # from the centre to the lower end
    px2, py2 = 0.5 * np.sin(a2), -0.5 * np.cos(a2)
    ex, ey = x2 - px2 - x1 - px1, y2 - py2 - y1 - py1
    off = ex * ex + ey * ey > SLOP * SLOP
    kxx = 2 / MASS + (py1 * py1 + py2 * py2) / INERTIA
    kyy = 2 / MASS + (px1 * px1 + px2 * px2) / INERTIA
    ix, iy = solve(kxx, -(px1 * py1 + px2 * py2) / INERTIA, kyy, -ex, -ey)
    x1 -= ix / MASS
    y1 -= iy / MASS
    a1 -= (px1 * iy - py1 * ix) / INERTIA
    x2 += ix / MASS
    y2 += iy / MASS
    a2 -= (px2 * iy - py2 * ix) / INERTIA

    rx, ry = -0.5 * np.sin(a1), 0.5 * np.cos(a1)
    ex, ey = x1 + rx, y1 + ry
    off |= ex * ex + ey * ey > SLOP * SLOP
    kxx, kyy = 1 / MASS + ry * ry / INERTIA, 1 / MASS + rx * rx / INERTIA
    ix, iy = solve(kxx, -rx * ry / INERTIA, kyy, -ex, -ey)
    x1 += ix / MASS
    y1 += iy / MASS
    a1 += (rx * iy - ry * ix) / INERTIA
    return off
