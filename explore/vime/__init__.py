"""Curiosity for reinforcement learning: an intrinsic reward from what a Bayesian dynamics model learns."""

from explore.vime.bonus import Reward as Reward
from explore.vime.bonus import RewardSettings as RewardSettings
from explore.vime.bonus import RolloutBonus as RolloutBonus
from explore.vime.bonus import Transitions as Transitions
from explore.vime.dynamics import DynamicsSettings as DynamicsSettings
from explore.vime.env_wrappers import VIME as VIME
from explore.vime.env_wrappers import VIMEVector as VIMEVector
from explore.vime.reward import IntrinsicReward as IntrinsicReward
