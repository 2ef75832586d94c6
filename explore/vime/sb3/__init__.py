"""VIME for stable-baselines3: batched environments, a wrapper, a callback (on-policy) and a replay buffer.

    model = TRPO("MlpPolicy", env)
    model.learn(500_000, VIMECallback(eta=0.001))      # PPO, TRPO, A2C: the paper's order
    SAC("MlpPolicy", env, replay_buffer_class=VIMEReplayBuffer, replay_buffer_kwargs={"eta": 0.001})
    env = VIMEVecEnv(env, eta=0.001)                                           # any algorithm: step by step
    PPO("MlpPolicy", env).learn(500_000, VIMELog(env.bonus))

`rollout/ep_rew_mean` excludes the bonus if the `Monitor` wrapper is inside the VIME wrapper, see `monitored`.
"""

from explore.vime.sb3.batched_ppo import BatchedPPO as BatchedPPO
from explore.vime.sb3.callbacks import Episodes as Episodes
from explore.vime.sb3.callbacks import VIMECallback as VIMECallback
from explore.vime.sb3.callbacks import VIMELog as VIMELog
from explore.vime.sb3.maxinfo import MaxInfoSAC as MaxInfoSAC
from explore.vime.sb3.replay_buffer import VIMEDictReplayBuffer as VIMEDictReplayBuffer
from explore.vime.sb3.replay_buffer import VIMEHerReplayBuffer as VIMEHerReplayBuffer
from explore.vime.sb3.replay_buffer import VIMENStepReplayBuffer as VIMENStepReplayBuffer
from explore.vime.sb3.replay_buffer import VIMEReplayBuffer as VIMEReplayBuffer
from explore.vime.sb3.wrappers import BatchedVecEnv as BatchedVecEnv
from explore.vime.sb3.wrappers import VIMEVecEnv as VIMEVecEnv
from explore.vime.sb3.wrappers import monitored as monitored
