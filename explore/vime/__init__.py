"""Curiosity for reinforcement learning: an intrinsic reward for the information gain of a Bayesian dynamics model."""

from explore.vime.bonuses.base import Bonus as Bonus
from explore.vime.bonuses.base import BonusSettings as BonusSettings
from explore.vime.dynamics import DynamicsSettings as DynamicsSettings
from explore.vime.env_wrappers import VIME as VIME
from explore.vime.env_wrappers import VIMEVector as VIMEVector
from explore.vime.reward import IntrinsicReward as IntrinsicReward
from explore.vime.reward import Reward as Reward
from explore.vime.reward import RewardSettings as RewardSettings
from explore.vime.reward import Transitions as Transitions
