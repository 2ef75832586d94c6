"""PPO whose steps become small where nothing is left to learn."""

import torch
from stable_baselines3 import PPO

FLOOR = 0.1  # least divisor of advantages, relative to the largest recent deviation ...
DECAY = 0.95  # ... which loses weight with each rollout: that of an untrained critic is large


class SteadyPPO(PPO):
    """PPO of stable-baselines3 with a floor under the deviation by which advantages are divided.

    Once a task is solved, all returns are alike, and advantages are noise. PPO divides them by their deviation, so this
    noise moves the policy as far as rewards did, and can lose the task again. Here the divisor is at least a tenth of
    the largest deviation of a recent rollout. Mean and deviation are those of the rollout, not of a minibatch.
    """

    def _setup_model(self) -> None:
        super()._setup_model()
        self.spread = torch.zeros(())  # the largest deviation, with decay

    def normalise(self) -> None:
        """Normalise the advantages in the rollout buffer, unless `normalize_advantage` is False."""
        if not self.normalize_advantage:
            return
        advantages = torch.as_tensor(self.rollout_buffer.advantages)
        deviation = advantages.std()
        self.spread = torch.maximum(DECAY * self.spread, deviation)
        divisor = torch.maximum(deviation, FLOOR * self.spread) + 1e-8
        self.rollout_buffer.advantages = ((advantages - advantages.mean()) / divisor).numpy()

    def train(self) -> None:
        """Update the policy from the rollout buffer."""
        self.normalise()
        asked, self.normalize_advantage = self.normalize_advantage, False
        try:
            super().train()
        finally:  # an interrupted training can go on
            self.normalize_advantage = asked

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        modules, variables = super()._get_torch_save_params()
        return modules, [*variables, "spread"]
