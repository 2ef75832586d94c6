"""The equations of motion against Box2D, and what each environment rewards and ends."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from explore.core.errors import InputError
from explore.envs.cart_pole import HEIGHT, WIDTH, CartPoleSwingup
from explore.envs.chain import Chain
from explore.envs.deep_sea import DeepSea
from explore.envs.double_pendulum import DoublePendulum
from explore.envs.key_door import KeyDoor
from explore.envs.mountain_car import TRACK, MountainCar, load_box2d
from explore.envs.simulation import RigidBodies, box, simulate

BOTH = pytest.mark.parametrize("cls", [CartPoleSwingup, DoublePendulum])


class InBox2D(RigidBodies):
    """rllab's worlds in Box2D, a world for each copy, instead of the equations."""

    build: Callable[[Any], Any]

    def start_worlds(self):
        self.worlds = [self.build(load_box2d()) for _ in range(self.n)]
        for i, (_, bodies, _) in enumerate(self.worlds):
            for body, (x, y, angle, vx, vy, spin) in zip(bodies, self.bodies[:, :, i].tolist(), strict=True):
                body.position, body.angle = (x, y), angle
                body.linearVelocity, body.angularVelocity = (vx, vy), spin

    def advance(self, force):
        for i, ((world, bodies, act), f) in enumerate(zip(self.worlds, force.tolist(), strict=True)):
            act(f)
            world.Step(self.step_size, *self.iterations)
            for k, body in enumerate(bodies):
                self.bodies[k, :, i] = (*body.position, body.angle, *body.linearVelocity, body.angularVelocity)


class CartPoleInBox2D(InBox2D, CartPoleSwingup):
    @staticmethod
    def build(box2d):
        world = box2d.b2World(doSleep=False)
        cart = world.CreateDynamicBody(position=(0, HEIGHT / 2))
        cart.CreatePolygonFixture(box=(WIDTH / 2, HEIGHT / 2), density=1, friction=0.0005)
        pole = world.CreateDynamicBody(position=(0, HEIGHT))
        pole.CreatePolygonFixture(vertices=box(0.1, 1, 0).tolist(), density=1, friction=2e-6, groupIndex=-1)
        track = world.CreateStaticBody(position=(0, -0.1))
        track.CreatePolygonFixture(box=(100, 0.1), friction=2e-6, groupIndex=-1)
        world.CreateJoint(type=box2d.b2RevoluteJoint, bodyA=cart, bodyB=pole, anchor=(0, HEIGHT))
        world.CreateJoint(type=box2d.b2PrismaticJoint, bodyA=track, bodyB=cart)

        def push(force):
            cart.ApplyForce(cart.GetWorldVector((force, 0)), cart.worldCenter, True)

        return world, [cart, pole], push


class DoublePendulumInBox2D(InBox2D, DoublePendulum):
    @staticmethod
    def build(box2d):
        world = box2d.b2World(doSleep=False)
        links = [world.CreateDynamicBody(position=p) for p in DoublePendulum.initial.tolist()]
        for link in links:
            link.CreatePolygonFixture(vertices=box(0.1, 1, -1).tolist(), density=5, groupIndex=-1)
        track = world.CreateStaticBody(position=(0, -0.1))
        track.CreatePolygonFixture(box=(100, 0.1), groupIndex=-1)
        world.CreateJoint(type=box2d.b2RevoluteJoint, bodyA=track, bodyB=links[0], anchor=(0, 0))
        joint = world.CreateJoint(type=box2d.b2RevoluteJoint, bodyA=links[0], bodyB=links[1], anchor=(0, -1))
        joint.motorEnabled = True

        def drive(torque):
            joint.motorSpeed = 1e5 if torque > 0 else -1e5
            joint.maxMotorTorque = abs(torque)

        return world, links, drive


ORACLES = {CartPoleSwingup: CartPoleInBox2D, DoublePendulum: DoublePendulumInBox2D}


def pair(cls, bodies):
    """A Box2D simulation and one of the equations, both with the given bodies [K, 6, n]."""
    box2d, equations = ORACLES[cls](bodies.shape[2]), cls(bodies.shape[2])
    box2d.bodies[:] = equations.bodies[:] = bodies
    box2d.start_worlds()
    return box2d, equations


def resets(cls, n, rng):
    simulation = cls(n)
    simulation.start(np.arange(n), np.stack([simulation.draw(rng) for _ in range(n)]))
    return simulation.bodies


def off(one, other):
    return np.abs(one.bodies - other.bodies).max((0, 1))


@BOTH
@pytest.mark.parametrize("part", range(10))  # a world takes 0.1 MB
def test_one_step_from_resets_and_from_later_states(cls, part):
    rng = np.random.default_rng(part)
    start = cls(1000)
    start.start(np.arange(1000), np.stack([start.draw(rng) for _ in range(1000)]))
    first = start.bodies[:, :, ::2].copy()
    for _ in range(part):
        start.step(rng.standard_normal((1000, 1)))
    start.bodies[:, :, ::2] = first
    box2d, equations = pair(cls, start.bodies)
    actions = rng.standard_normal((1000, 1))
    rewards = [simulation.step(actions)[0] for simulation in (box2d, equations)]
    assert off(box2d, equations).max() < 1e-4
    assert np.abs(first - box2d.bodies[:, :, ::2]).max() > 1  # the jolt of the joints
    np.testing.assert_allclose(box2d.observe(), equations.observe(), atol=1e-4)
    assert (rewards[0] == rewards[1]).mean() > 0.99


@BOTH
def test_twenty_steps(cls):
    rng = np.random.default_rng(1)
    box2d, equations = pair(cls, resets(cls, 500, rng))
    for _ in range(20):
        actions = rng.standard_normal((500, 1))
        box2d.step(actions)
        equations.step(actions)
    assert off(box2d, equations).max() < 1e-2


def test_limit_of_rotation_in_a_step():
    bodies = resets(DoublePendulum, 100, np.random.default_rng(2))
    bodies[1, 5] = np.linspace(-1000, 1000, 100)
    box2d, equations = pair(DoublePendulum, bodies)
    box2d.advance(np.zeros(100))
    equations.advance(np.zeros(100))
    assert np.abs(equations.bodies[:, 5]).max() == pytest.approx(np.pi / 2 / 0.01)
    np.testing.assert_allclose(equations.bodies, box2d.bodies, atol=1e-3)


def test_first_step_of_rllabs_cart_pole():
    # Nominally (0.5, 1, pi, 3); measured in a world that was built by hand from rllab's cartpole.xml.mako.
    for simulation in (CartPoleInBox2D(1), CartPoleSwingup(1)):
        draws = (np.array([[0.5, 1.0, np.pi, 3.0]]) - [0, 0, np.pi, 0]) / [1, 2, 1, 3] / 2 + 0.5
        simulation.start(np.zeros(1, int), draws)
        if isinstance(simulation, InBox2D):
            simulation.start_worlds()
        np.testing.assert_allclose(simulation.observe(), [[0.5, 1, np.pi, 3]], atol=1e-6)
        simulation.step(np.zeros((1, 1)))
        np.testing.assert_allclose(simulation.observe(), [[0.5428, 0.9386, 1.9306, -0.6487]], atol=1e-4)


def test_a_consistent_reset_has_no_jolt():
    simulation = CartPoleSwingup(200, reset="consistent")
    rng = np.random.default_rng(3)
    simulation.start(np.arange(200), rng.random((200, 4)))
    before = simulation.observe()
    simulation.step(np.zeros((200, 1)))
    change = np.abs(simulation.observe() - before).max(0)
    assert (change < [0.15, 0.3, 0.25, 1.5]).all()  # a twentieth of a second of free motion


def test_a_hanging_pendulum_hangs():
    simulation = DoublePendulum(1)
    simulation.start(np.zeros(1, int), np.zeros((1, 4)))
    for _ in range(50):
        simulation.step(np.zeros((1, 1)))
    np.testing.assert_allclose(simulation.observe(), [[0, 1, 0, 0, 1, 0]], atol=1e-6)


@pytest.mark.parametrize(
    ("x", "angle", "sparse", "dense", "done"),
    [(0, 0, 1, 1, 0), (2.9, 0.6, 1, np.cos(0.6), 0), (0, 0.7, 0, np.cos(0.7), 0), (3.1, 0, 0, -100, 1)],
)
def test_reward_of_the_cart_pole(x, angle, sparse, dense, done):
    for kind, expected in ((True, sparse), (False, dense)):
        simulation = CartPoleSwingup(1, sparse=kind)
        simulation.bodies[0, 0], simulation.bodies[1, 2] = x, angle
        reward, ended = simulation.outcome()
        assert (reward[0], ended[0]) == (pytest.approx(expected), done)


@pytest.mark.parametrize(("x", "y", "done"), [(0.59, 0.4, 0), (0.6, 0.4, 1), (-1.9, 2, 0), (-2.0, 2, 1), (2.1, 2, 1)])
def test_reward_of_the_mountain_car(x, y, done):
    for kind, expected in ((True, done), (False, y - 1)):
        simulation = MountainCar(1, sparse=kind)
        simulation.bodies[0, :2, 0] = x, y
        reward, ended = simulation.outcome()
        assert (reward[0], ended[0]) == (pytest.approx(expected), done)


@pytest.mark.parametrize(("angle", "near"), [(np.pi, 1), (np.pi - 0.09, 1), (np.pi - 0.12, 0), (0, 0)])
def test_reward_of_the_double_pendulum(angle, near):
    for kind, expected in ((True, near), (False, -2 * np.sin((np.pi - angle) / 2))):
        simulation = DoublePendulum(1, sparse=kind, threshold=0.1)
        simulation.bodies[1, :3, 0] = 0, 1, angle
        reward, ended = simulation.outcome()
        assert not ended[0]
        assert reward[0] == pytest.approx(expected)


def test_the_mountain_car_escapes_by_pumping_and_pays_at_both_ends():
    simulation = MountainCar(2)
    simulation.start(np.arange(2), np.array([[0.9], [0.1]]))
    first = np.zeros(2, int)
    for step in range(1, 200):
        reward, done = simulation.step(np.sign(simulation.observe()[:, 1:]))
        assert (reward == done).all()
        first[done & (first == 0)] = step
        if first.all():
            break
    assert (first > 50).all() and (first < 150).all()
    assert TRACK[100] == pytest.approx([0, 0])


@pytest.mark.parametrize("length", [3, 20])
def test_the_best_return_of_the_chain(length):
    simulation = Chain(2, length)
    rewards = [simulation.step(np.array([1, 0]))[0] for _ in range(length + 9)]
    np.testing.assert_allclose(np.sum(rewards, axis=0), [12.0, 0.001 * (length + 9)])


@pytest.mark.parametrize(("size", "stochastic"), [(2, False), (7, False), (7, True)])
def test_the_best_path_of_the_deep_sea(size, stochastic):
    simulation, rng = DeepSea(3, size, stochastic, mapping=4), np.random.default_rng(0)
    simulation.start(np.arange(3), np.stack([simulation.draw(rng) for _ in range(3)]))
    total, ended = np.zeros(3), np.zeros(3, bool)
    for row in range(size):
        np.testing.assert_array_equal(simulation.observe().argmax(1), row * size + simulation.column)
        right = simulation.right[row, simulation.column]
        reward, ended = simulation.step(np.where([True, False, row < 1], right, 1 - right))
        total += reward
    assert ended.all() and not simulation.observe().any()
    if stochastic:  # noise in the corner at the left; the path at the right holds only if no step fails
        assert total[1] == simulation.chances[1, -1] and total[0] != pytest.approx(0.99)
    else:
        np.testing.assert_allclose(total, [0.99, 0, -0.01 / size], atol=1e-12)


def test_a_television_shows_noise_that_moves_nothing():
    simulation, rng = Chain(2, 5, noise=3), np.random.default_rng(0)
    draws = np.stack([simulation.draw(rng) for _ in range(2)])
    simulation.start(np.arange(2), draws)
    simulation.step(np.array([2, 1]))
    np.testing.assert_allclose(simulation.observe()[:, 5:], [draws[0, :3], np.zeros(3)], rtol=1e-6)
    assert simulation.state.tolist() == [1, 2]
    simulation.step(np.array([1, 2]))
    np.testing.assert_allclose(simulation.observe()[:, 5:], [np.zeros(3), draws[1, 3:6]], rtol=1e-6)


def test_a_door_opens_with_the_key_only():
    simulation = KeyDoor(2, 5)
    for step, action in enumerate([(0, 1)] * 2 + [(1, 1)] * 4):
        reward, ended = simulation.step(np.array(action))
        assert reward.tolist() == ended.astype(float).tolist() == [step == 5, 0]
    assert simulation.observe().tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 0]]


def test_wrong_settings():
    name = "explore.envs.mountain_car:MountainCar"
    with pytest.raises(InputError, match="unknown setting 'goal'; allowed: sparse, threshold"):
        simulate(name, 1, goal=1)
    with pytest.raises(InputError, match="threshold"):
        DoublePendulum(threshold=0)
    for wrong in (lambda: Chain(length=2), lambda: KeyDoor(length=2), lambda: DeepSea(size=1), lambda: Chain(noise=-1)):
        with pytest.raises(InputError, match="length|size|noise"):
            wrong()


def test_the_message_where_box2d_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "Box2D", None)
    with pytest.raises(InputError, match="pip install"):
        MountainCar()
    CartPoleSwingup()
