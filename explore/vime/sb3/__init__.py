"""VIME for stable-baselines3: batched environments, a wrapper, a callback (on-policy) and a replay buffer.

    model = TRPO("MlpPolicy", env)
    model.learn(500_000, VIMECallback())                                       # PPO, TRPO, A2C: the paper's order
    SAC("MlpPolicy", env, replay_buffer_class=VIMEReplayBuffer, replay_buffer_kwargs={"eta": 0.001})
    env = VIMEVecEnv(env)                                                      # any algorithm: step by step
    PPO("MlpPolicy", env).learn(500_000, VIMELog(env.bonus))

`rollout/ep_rew_mean` excludes the bonus if the `Monitor` wrapper is inside the VIME wrapper, see `monitored`.
"""

from explore.vime.sb3.batched_ppo import BatchedPPO as BatchedPPO
from explore.vime.sb3.callbacks import Episodes as Episodes, VIMECallback as VIMECallback, VIMELog as VIMELog
from explore.vime.sb3.maxinfo import MaxInfoSAC as MaxInfoSAC
from explore.vime.sb3.replay_buffer import (
    VIMEDictReplayBuffer as VIMEDictReplayBuffer,
    VIMEHerReplayBuffer as VIMEHerReplayBuffer,
    VIMENStepReplayBuffer as VIMENStepReplayBuffer,
    VIMEReplayBuffer as VIMEReplayBuffer,
)
from explore.vime.sb3.steady import SteadyPPO as SteadyPPO
from explore.vime.sb3.wrappers import BatchedVecEnv as BatchedVecEnv, VIMEVecEnv as VIMEVecEnv, monitored as monitored
