"""The names of the algorithms, without their classes, so that the command's help needs no torch."""

from typing import Literal

Algorithm = Literal[
    "trpo", "ppo", "ppo_lstm", "a2c", "sac", "maxinfo", "td3", "ddpg", "tqc", "crossq", "dqn", "qrdqn"
]  # fmt: skip
