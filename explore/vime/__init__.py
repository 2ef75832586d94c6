"""Curiosity for reinforcement learning: an intrinsic reward from what a Bayesian dynamics model learns."""

from explore.vime.env_wrappers import VIME as VIME
from explore.vime.env_wrappers import VIMEVector as VIMEVector
from explore.vime.reward import IntrinsicReward as IntrinsicReward
from explore.vime.reward import Transitions as Transitions
