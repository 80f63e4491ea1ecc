"""The warm-up: supervised updates of a fresh tiny policy."""

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.cluster.resident import drop
from infra.storage import store
from rl.config import PolicyConfig
from rl.learning.optimizer_config import OptimizerConfig
from rl.problems.shown import shown
from tasks.calls.held import held

if TYPE_CHECKING:
    from rl.learning.learner import Learner


@dataclass(frozen=True)
class WarmUp:
    """What determines a warm-up, and where it computes; the learner that its methods work with is held resident by the
    worker on which they are called."""

    problems: str  # that are shown
    steps: int
    batch: int  # problems per update
    optimizer: OptimizerConfig
    seed: int
    policy: PolicyConfig

    def determining(self) -> dict[str, Any]:
        """The settings that the result depends on."""
        return {
            "problems": self.problems,
            "steps": self.steps,
            "batch": self.batch,
            "optimizer": self.optimizer.model_dump(mode="json"),
            "seed": self.seed,
            "dtype": self.policy.dtype,
        }

    def updates(self, at_least: int, seconds: float = 0.0) -> tuple[int, float]:
        """Supervised updates until ``at_least`` have been made, and more for so many seconds; returns how many there
        are, and the last one's loss in nats per token. A fresh process makes them all, from the first. On one thread:
        of so small a policy two wait for each other longer than they compute (0.32 s an update against 0.17)."""
        import torch

        from rl.learning.supervised import demonstrations, imitate

        began = time.monotonic()
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        loss = math.nan
        try:
            with held("warm-up", self, self._fresh, again=False) as learner:
                while learner.step < at_least or (learner.step < self.steps and time.monotonic() - began < seconds):
                    some = shown(self.problems, self.seed, learner.step, self.batch)
                    left = 1 - learner.step / self.steps
                    loss = imitate(learner, demonstrations(learner.policy, some), scale=max(left, 0.05))
                    learner.step += 1
                return learner.step, loss
        finally:
            torch.set_num_threads(before)

    def keep(self, uri: str) -> None:
        """Store the finished warm-up and let go of its learner."""
        from infra.weights.whole import keep_whole
        from rl.model.policy import save_policy

        self.updates(self.steps)
        with store.scratch(uri.rpartition("/")[0]) as folder:
            with held("warm-up", self, self._fresh, again=False) as learner:
                save_policy(learner.policy, folder)
            keep_whole(uri, folder)
        drop("warm-up")

    def _fresh(self) -> "Learner":
        import torch

        from rl.learning.learner import Learner
        from rl.model.policy import Policy, choose_device, choose_dtype
        from rl.model.tiny import build_model, build_tokenizer

        device = choose_device(self.policy.device)
        tokenizer = build_tokenizer()
        model = build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, self.seed)
        torch.nn.Module.to(model, device)  # transformers wraps its own so that types are lost
        dtype = choose_dtype(self.policy.dtype, device, model.num_parameters)
        return Learner(Policy(model, tokenizer, device, dtype), self.optimizer)
