"""The examples of the README, run as they stand there, but for the number of steps."""

import re
import subprocess
import sys
from pathlib import Path

import explore

README = (Path(explore.__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def example(name):
    found = re.search(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found, f"README.md has no example {name!r}"
    return found[1]


def shortened(text, steps, fewer):
    assert steps in text
    return text.replace(steps, fewer)


def python(*arguments, cwd):
    return subprocess.run([sys.executable, *arguments], cwd=cwd, check=True, capture_output=True, text=True)


def test_stable_baselines3(tmp_path):
    shown = python("-c", shortened(example("stable-baselines3"), "50_000", "2_048"), cwd=tmp_path).stdout
    assert "vime/dyn_nll_after" in shown


def test_a_loop_of_ones_own(tmp_path):
    code = shortened(example("vector loop"), "5_000", "300") + "\nassert learn_from[2].all(), learn_from"
    # With other actions the last step may be a reset, which pays nothing.
    python("-c", shortened(code, "envs.reset(seed=1)", "envs.reset(seed=1); envs.action_space.seed(1)"), cwd=tmp_path)


PAID = """
from stable_baselines3.common.callbacks import BaseCallback


class Paid(BaseCallback):
    rewards = []

    def _on_step(self):
        self.rewards.append(float(self.locals["rewards"][0]))
        return True

    def _on_training_end(self):
        paid = [step for step, reward in enumerate(self.rewards, 1) if reward]
        print(f"{len(paid)} rewards, at steps {paid[0]} to {paid[-1]}")
"""


def test_the_zoo(tmp_path):
    """A bonus is paid from the first training on; alone the environment pays nothing before its goal."""
    (tmp_path / "paid.py").write_text(PAID)
    text = shortened(example("zoo"), "n_timesteps: 50000", "n_timesteps: 2048")
    (tmp_path / "vime.yml").write_text(text + "  callback: paid.Paid\n")
    words = example("zoo command").split()
    more = ["--log-folder", "logs", "--eval-freq", "-1", "--seed", "1"]
    shown = python(*words[1:], *more, cwd=tmp_path)
    assert "48 rewards, at steps 2001 to 2048\n" in shown.stdout
    assert list(tmp_path.glob("logs/ppo/*/explore-SparseMountainCar-v0.zip")), shown.stdout[-2000:]
