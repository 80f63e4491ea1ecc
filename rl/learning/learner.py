"""The learner: a policy with its optimizer. One update is one batch, applied whole or not at all."""

from dataclasses import replace

from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.optimized import Optimized, OptimizerStep
from rl.learning.shaping import shaped
from rl.learning.update import Update, adapted, divided, mean_of
from rl.model.policy import Policy
from rl.records import Batch, Learned


class Learner(Optimized[Policy]):
    """A policy being trained."""

    def update(self, batch: Batch, config: AlgorithmSpec, temperature: float, max_tokens: int = 0) -> Learned:
        """One step of the algorithm on the batch's groups that teach something: an optimizer step, or several of parts
        of it; the version advances whatever happens.

        A non-finite loss or gradient is refused, and what was left of the batch with it: weights and optimizer stay as
        they were before that optimizer step, ``Learned.refused`` says why. ``max_tokens`` is where completions were
        cut; only an algorithm that reads it needs it.
        """
        if self.kl_coefficient is None:
            self.kl_coefficient = config.kl.coefficient
        batch = shaped(batch, config, max_tokens, self.kl_coefficient)
        teaching = batch.teaching(every_group=config.algorithm.every_group)
        used = [int(group) for group in teaching.nonzero()[0] if batch.rollouts.trained[group].any()]
        learned = Learned(self.step + 1, applied=False)
        if used:
            update = Update(
                self.policy,
                self.accumulation,
                batch,
                config,
                step=self.step,
                temperature=temperature,
                max_tokens=max_tokens,
                coefficient=self.kl_coefficient,
                standing=self.standing,
            )
            learned = self._learn(update, used)
        self.refusals = self.refusals + 1 if learned.refused else 0
        self.step += 1
        metrics = {"groups/used": len(used), **learned.metrics}
        self.learned = replace(
            learned, refusals=self.refusals, groups=len(used), metrics=metrics, kl_coefficient=self.kl_coefficient
        )
        return self.learned

    def _learn(self, update: Update, used: list[int]) -> Learned:
        config, rollouts = update.config, update.batch.rollouts
        update.prepare(used)
        parts = [part for epoch in range(config.epochs) for part in divided(used, config.minibatches, self.step, epoch)]
        steps: list[OptimizerStep] = []
        for index, part in enumerate(parts):
            steps.append(self._optimize(update, part, index / len(parts)))
            if steps[-1].refused:
                break
        ages = (self.step - rollouts.versions)[used][rollouts.trained[used]]
        metrics = {
            **mean_of(steps),
            "staleness/mean": float(ages.mean()),  # versions between sampling and training, over tokens
            "staleness/max": float(ages.max()),
        }
        if config.kl.coefficient:
            metrics["loss/kl_reference"] = apart = metrics.pop("policy/kl_reference")
            assert self.kl_coefficient is not None
            metrics["loss/kl_coefficient"] = self.kl_coefficient  # by which this was learned
            self.kl_coefficient = adapted(self.kl_coefficient, config.kl, apart)
        return Learned(
            self.step + 1,
            applied=not steps[0].refused,
            refused=steps[-1].refused and f"the {steps[-1].refused} of update {self.step + 1} is not finite",
            said="; ".join(dict.fromkeys(step.said for step in steps if step.said)),
            metrics=metrics,
        )

    def _optimize(self, update: Update, part: list[int], progress: float) -> OptimizerStep:
        """One optimizer step on these groups, after ``progress`` of those of the batch."""
        objective = update.objective(part, progress)
        count = int(update.batch.rollouts.trained[part].sum())
        return self.scaled_step(lambda scale: update.backward(objective, part, scale), count)
