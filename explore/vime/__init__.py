"""Curiosity for reinforcement learning: an intrinsic reward for the information gain of a Bayesian dynamics model."""

from explore.vime.bonuses.base import Bonus as Bonus, BonusSettings as BonusSettings
from explore.vime.dynamics import DynamicsSettings as DynamicsSettings
from explore.vime.env_wrappers import VIME as VIME, VIMEVector as VIMEVector
from explore.vime.reward import (
    IntrinsicReward as IntrinsicReward,
    Reward as Reward,
    RewardSettings as RewardSettings,
    Transitions as Transitions,
)
