"""The learner: a policy with its optimizer. One update is one batch, applied whole or not at all.

Legend: P groups, G completions per group, N completion tokens.
"""

import json
import math
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file
from torch import Tensor

from rl.algorithms import Algorithm
from rl.config import LossConfig
from rl.learning.optimizers import build_optimizers, restore_state, state_bytes, state_tensors
from rl.learning.packing import Packed
from rl.learning.passes import Accumulation, Passes
from rl.learning.shaping import shaped
from rl.model.blocks import in_blocks
from rl.model.head import hidden_states
from rl.model.in_place import embedding_in_place
from rl.model.memory import checkpointed, room_for
from rl.model.policy import Policy, read_weights, save_policy
from rl.model.scores import Loss, target_scores
from rl.optimizer_config import OptimizerConfig
from rl.records import Batch, Learned, Rollouts


@dataclass(frozen=True)
class _State:
    """What a learner counts; a field that another version of this file knew is passed over."""

    step: int
    applied: int  # optimizer steps
    refusals: int
    learned: Learned | None
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


def token_scores(
    policy: Policy, packed: Packed, temperature: float, loss: Loss | None = None, *, checkpointing: bool = False
) -> tuple[Tensor, Tensor]:
    """[N] log-probs of the packed completion tokens at ``temperature`` in float32, and [N] entropies, both detached.

    With ``loss``, its gradient is added to that of the policy's parameters; see `checkpointed` for ``checkpointing``.
    """
    with in_blocks(policy.model, packed.mask):
        with policy.autocast():
            hidden = states_at(
                policy, packed, packed.logit_positions, trained=loss is not None, layers_twice=checkpointing
            )
            found = target_scores(policy.model, hidden.detach(), packed.targets, temperature, loss)
        logprobs, entropy, gradient = found
        if gradient is not None and hidden.requires_grad:
            hidden.backward(gradient)  # type: ignore[no-untyped-call]
    return logprobs, entropy


def states_at(policy: Policy, packed: Packed, positions: Tensor, *, trained: bool, layers_twice: bool) -> Tensor:
    """[N, H]: the hidden states of these positions [N] of the packed tokens' rows, for a backward pass where they are
    trained; see `checkpointed` for ``layers_twice``. Called inside of `in_blocks` and `autocast`, in the first of which
    the backward pass runs too."""
    layers = checkpointed(policy.model) if layers_twice else nullcontext()
    with torch.set_grad_enabled(trained), embedding_in_place(policy.model), layers:
        states = hidden_states(
            policy.model,
            mask=packed.mask,
            input_ids=packed.tokens,
            position_ids=packed.positions,
            use_cache=False,
        )
        return states[packed.rows, positions]


def token_loss(algorithm: Algorithm, behaviour: Tensor, advantage: Tensor, weight: Tensor) -> Loss:
    """The loss of an algorithm from the log-probs of some of N tokens, of each of which the [N] tensors tell."""

    def loss(logprobs: Tensor, part: slice) -> Tensor:
        return (weight[part] * algorithm.token_loss(logprobs, behaviour[part], advantage[part]).value).sum()

    return loss


class Learner:
    """A policy being trained. ``step`` is the version that it holds: how many updates have been made."""

    def __init__(self, policy: Policy, config: OptimizerConfig, *, step: int = 0) -> None:
        self.policy = policy
        self.config = config
        self.step = step
        self.optimizer_steps = 0  # that changed the weights
        self.refusals = 0  # non-finite updates in a row
        self.learned: Learned | None = None
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

    def update(self, batch: Batch, loss: LossConfig, temperature: float, max_tokens: int = 0) -> Learned:
        """One policy-gradient step on the batch's groups that vary; the version advances whatever happens.

        A non-finite loss or gradient is refused: weights and optimizer stay, ``Learned.refused`` says why.
        ``max_tokens`` is where completions were cut; only ``loss.overlong`` needs it.
        """
        batch = shaped(batch, loss, max_tokens)
        used = [int(group) for group in batch.with_signal.nonzero()[0] if batch.rollouts.lengths[group].any()]
        nothing = Learned(self.step + 1, applied=False)
        learned = self._apply(batch, used, loss.algorithm, temperature) if used else nothing
        self.refusals = self.refusals + 1 if learned.refused else 0
        self.step += 1
        metrics = {"groups/used": len(used), **learned.metrics}
        self.learned = replace(learned, refusals=self.refusals, groups=len(used), metrics=metrics)
        return self.learned

    def _apply(self, batch: Batch, used: list[int], algorithm: Algorithm, temperature: float) -> Learned:
        rollouts = batch.rollouts
        advantage = torch.zeros(batch.rewards.shape)
        weight = torch.zeros(batch.rewards.shape)
        advantage[used] = torch.from_numpy(algorithm.advantages(batch.rewards[used]))
        weight[used] = torch.from_numpy(algorithm.token_weights(rollouts.lengths[used]))
        count = int(rollouts.lengths[used].sum())
        scale = loss_scale(self.policy.dtype, count)
        while True:
            sums, said = self._backward(rollouts, used, advantage, weight, algorithm, temperature, scale)
            total = sums.pop("loss")
            # what is not finite anywhere in the loss is not finite in the norm, which `optimizer_step` refuses
            norm = self.optimizer_step(loss_scale=scale) if math.isfinite(total) else math.nan
            self.policy.model.zero_grad(set_to_none=True)
            if math.isfinite(norm) or not math.isfinite(total) or scale == 1:
                break
            scale = max(1.0, scale / 16)  # the scaled gradient may be what overflowed
        applied = math.isfinite(norm)
        what = "loss" if not math.isfinite(total) else "gradient"
        there = np.arange(rollouts.tokens.shape[2]) < rollouts.lengths[used][..., None]
        ages = self.step - rollouts.versions[used][there]
        return Learned(
            self.step + 1,
            applied=applied,
            refused="" if applied else f"the {what} of update {self.step + 1} is not finite",
            said=said,
            metrics={
                "loss/policy": total,
                "policy/grad_norm": norm,  # before clipping
                "staleness/mean": float(ages.mean()),  # versions between sampling and training, over tokens
                "staleness/max": float(ages.max()),
                **{f"policy/{name}": of / count for name, of in sums.items()},
            },
        )

    def _backward(
        self,
        rollouts: Rollouts,
        used: list[int],
        advantage: Tensor,  # [P, G]
        weight: Tensor,  # [P, G]
        algorithm: Algorithm,
        temperature: float,
        scale: float,
    ) -> tuple[dict[str, float], str]:
        """Add ``scale`` times the loss's gradient to the parameters'. Returns the loss and each metric, as sums over
        tokens, and what is to be said of memory."""
        device = self.policy.device
        advantage, weight = advantage.to(device), weight.to(device)
        behaviour = torch.from_numpy(rollouts.logprobs).to(device)

        def add(packed: Packed, checkpointing: bool) -> dict[str, float]:
            mu = behaviour[packed.group, packed.sample, packed.token_index]
            towards, share = (of[packed.group, packed.sample] for of in (advantage, weight))
            loss = token_loss(algorithm, mu, towards, share * scale)
            logprobs, entropy = token_scores(self.policy, packed, temperature, loss, checkpointing=checkpointing)
            with torch.no_grad():
                terms = algorithm.token_loss(logprobs, mu, towards)
                gap = logprobs - mu
                # mismatch_kl: KL(mu || pi) on the sampled tokens before the update, k3 estimate, nats
                seen = {"entropy": entropy, "mismatch_kl": gap.exp() - gap - 1, **terms.metrics}
                added = torch.stack([(share * terms.value).sum(), *(of.sum().float() for of in seen.values())])
            return dict(zip(("loss", *seen), added.tolist(), strict=True))

        return self.accumulation.add(rollouts, used, add, self.standing)

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
            self.step, self.optimizer_steps, self.refusals, self.learned, self.accumulation.passes, self._given
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
        self.refusals, self.learned = state.refusals, state.learned
        self.accumulation.passes = state.passes if state.given == self._given else None
