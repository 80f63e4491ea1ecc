"""The learner: a policy with its optimizer. One update is one batch, applied whole or not at all."""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file
from torch import Tensor

from rl.algorithm_config import AlgorithmSpec
from rl.learning.optimizers import build_optimizers, restore_state, state_bytes, state_tensors
from rl.learning.passes import Accumulation, Passes
from rl.learning.shaping import shaped
from rl.learning.update import OptimizerStep, Update, adapted, divided, mean_of
from rl.model.memory import room_for
from rl.model.policy import Policy, read_weights, save_policy
from rl.optimizer_config import OptimizerConfig
from rl.records import Batch, Learned


@dataclass(frozen=True)
class _State:
    """What a learner counts; a field that another version of this file knew is passed over."""

    step: int
    applied: int  # optimizer steps
    refusals: int
    learned: Learned | None
    kl_coefficient: float | None = None
    passes: Passes | None = None  # by which it updates
    given: tuple[int | str | None, ...] | None = None  # the options of passes then, and the kind of device


_STATE = TypeAdapter(_State)


def loss_scale(dtype: torch.dtype, tokens: int) -> float:
    """The factor of a loss before the backward pass, by which its gradient is divided after it.

    In float16, whose smallest normal number is 6e-5, a token's share of the gradient would vanish: from a weight of
    1/tokens in the loss it is brought to about 2^-4, by a power of two, so that scaling itself rounds nothing
    (Micikevicius et al., arXiv 1710.03740, section 3.2). 1 in a type with the range of float32.
    """
    return 2.0 ** max(0, tokens.bit_length() - 5) if dtype == torch.float16 else 1.0


class Learner:
    """A policy being trained. ``step`` is the version that it holds: how many updates have been made."""

    def __init__(self, policy: Policy, config: OptimizerConfig, *, step: int = 0) -> None:
        self.policy = policy
        self.config = config
        self.step = step
        self.optimizer_steps = 0  # that changed the weights
        self.refusals = 0  # non-finite updates in a row
        self.learned: Learned | None = None
        self.kl_coefficient: float | None = None  # as it was adapted so far
        self.decay = 1.0  # share of the learning rate that the next update takes: see rl.learning.schedules
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizers = build_optimizers(policy, config)
        self.accumulation = Accumulation(policy, config)

    @property
    def standing(self) -> int:
        """Bytes that the first update takes and keeps: of gradients, and of the optimizer's state."""
        gradients = sum(p.numel() * p.element_size() for p in self.parameters if p.grad is None)
        return gradients + sum(state_bytes(optimizer) for optimizer in self.optimizers if not optimizer.state)

    def optimizer_step(self, scale: float = 1.0, *, loss_scale: float = 1.0) -> float:
        """Divide the gradient by ``loss_scale``, clip it, take one optimizer step at ``scale`` times the learning rate,
        and return the norm before clipping.

        A norm that is not finite leaves weights and optimizer as they were.
        """
        if loss_scale != 1:
            torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], 1 / loss_scale)
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip_norm))
        if math.isfinite(norm):
            rise = scale * self.decay * min(1.0, (self.optimizer_steps + 1) / max(1, self.config.warmup_steps))
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.config.rate * rise
                with room_for(f"the state of {self.config.name}", self.policy.device):
                    optimizer.step()
            # a fused AdamW and bitsandbytes write past autograd's counters, by which sampling sees new weights
            torch.autograd.graph.increment_version(self.parameters)
            self.optimizer_steps += 1
        self.policy.model.zero_grad(set_to_none=True)
        return norm

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
        teaching = batch.judged if config.algorithm.every_group else batch.with_signal
        used = [int(group) for group in teaching.nonzero()[0] if batch.rollouts.lengths[group].any()]
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
        self.learned = replace(learned, refusals=self.refusals, groups=len(used), metrics=metrics)
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
        ages = (self.step - rollouts.versions)[used][rollouts.inside[used]]
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
        count = int(update.batch.rollouts.lengths[part].sum())
        scale = loss_scale(self.policy.dtype, count)
        while True:
            sums, said = update.backward(objective, part, scale)
            total = sums.pop("loss")
            # what is not finite anywhere in the loss is not finite in the norm, which `optimizer_step` refuses
            norm = self.optimizer_step(loss_scale=scale) if math.isfinite(total) else math.nan
            self.policy.model.zero_grad(set_to_none=True)
            if math.isfinite(norm) or not math.isfinite(total) or scale == 1:
                break
            scale = max(1.0, scale / 16)  # the scaled gradient may be what overflowed
        refused = "" if math.isfinite(norm) else "gradient" if math.isfinite(total) else "loss"
        return OptimizerStep(total, norm, sums, count, refused, said)

    # -- what survives the process

    @property
    def _given(self) -> tuple[int | str | None, ...]:
        return self.config.microbatch_tokens, self.config.checkpointing, self.policy.device.type

    def optimizer_of(self, parameter: Tensor) -> torch.optim.Optimizer:
        """The optimizer that updates this parameter."""
        return next(
            optimizer
            for optimizer in self.optimizers
            if any(parameter is one for group in optimizer.param_groups for one in group["params"])
        )

    def save(self, folder: Path) -> None:
        """Write what a new process needs to go on: weights, optimizer, random state, counters."""
        save_policy(self.policy, folder)
        tensors = {"rng": torch.get_rng_state()}
        for index, parameter in enumerate(self.parameters):
            for name, value in state_tensors(self.optimizer_of(parameter), parameter).items():
                tensors[f"{index}.{name}"] = value
        save_file(tensors, folder / "optimizer.safetensors")
        state = _State(
            self.step,
            self.optimizer_steps,
            self.refusals,
            self.learned,
            self.kl_coefficient,
            self.accumulation.passes,
            self._given,
        )
        (folder / "learner.json").write_text(json.dumps(asdict(state)))

    def restore(self, folder: Path) -> None:
        """Take over what :meth:`save` wrote, bit for bit."""
        self.policy.load_weights(read_weights(folder))
        tensors = load_file(folder / "optimizer.safetensors")
        torch.set_rng_state(tensors.pop("rng"))
        for optimizer in self.optimizers:
            optimizer.state.clear()
        for key, value in tensors.items():
            index, name = key.split(".", 1)
            parameter = self.parameters[int(index)]
            restore_state(self.optimizer_of(parameter), parameter, name, value)
        state = _STATE.validate_json((folder / "learner.json").read_bytes())
        self.step, self.optimizer_steps = state.step, state.applied
        self.refusals, self.learned, self.kl_coefficient = state.refusals, state.learned, state.kl_coefficient
        self.accumulation.passes = state.passes if state.given == self._given else None
