"""Log-probs and entropies of given tokens, without the logits of all positions at once.

[N, V] logits of Qwen3 (V = 151,936) are 0.6 MB a token in float32, and a log-softmax with its gradient holds four such
tensors. Here they exist for a chunk of tokens at a time, and once more in the backward pass: it costs a fourth product
with the head's weight beside the three that there are, and saves the traffic of those tensors.

Legend: N tokens, C of them in a chunk, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from transformers import PreTrainedModel

from rl.model.head import finished_logits, head_logits

CHUNK = 2**24  # logits in a chunk: 64 MiB in float32
DIRECT = 2**22  # logits up to which nothing is computed twice


def target_scores(
    model: PreTrainedModel, hidden: Tensor, targets: Tensor, temperature: float, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """[N] log-probs of the tokens ``targets`` [N] at ``temperature``, and [N] entropies (detached), from the hidden
    states [N, H] that predict them; in float32, in float64 of a model in float64.

    ``chunk`` tokens are taken at a time, by default as many as :data:`CHUNK` logits; a few are computed all at once.
    """
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    plain = type(head) is nn.Linear and head.weight.is_leaf  # any other head is left to autograd
    if not plain or (chunk is None and len(targets) * head.out_features <= DIRECT):
        scores = (head_logits(model, hidden) / temperature).log_softmax(-1)
        with torch.no_grad():
            entropy = -(scores.exp() * scores).sum(-1)
        return scores.gather(1, targets[:, None]).squeeze(1), entropy

    def finished(output: Tensor) -> Tensor:
        logits = finished_logits(model, output)
        return logits if temperature == 1 else logits / temperature  # a copy less

    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.weight.dtype
    chunk = chunk or max(1, CHUNK // head.out_features)
    found: tuple[Tensor, Tensor] = _Chunked.apply(hidden, head.weight, head.bias, targets, finished, dtype, chunk)  # type: ignore[no-untyped-call]
    return found


class _Chunked(torch.autograd.Function):
    """Log-probs and entropies in chunks of tokens.

    With z = ``finished(hidden @ weight.T + bias)`` and logp_n = z_n[target_n] - log sum_v exp(z_nv):
    d logp_n / d z_nv = 1[v = target_n] - softmax(z_n)_v. From z back to the head's output autograd goes, a chunk at a
    time, so that no formula of ``finished`` is written twice. The gradient of weight and bias, which are parameters, is
    added to theirs and not handed to autograd: :func:`torch.autograd.grad` does not see it, nor do their hooks.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [N, H]
        weight: Tensor,  # [V, H]
        bias: Tensor | None,  # [V]
        targets: Tensor,  # [N]
        finished: Callable[[Tensor], Tensor],  # logits [C, V] of the head's output
        dtype: torch.dtype,  # of the products with the weight
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        logprobs, entropy, normalizer = (hidden.new_empty(len(targets), dtype=wide) for _ in range(3))
        head = weight.to(dtype), None if bias is None else bias.to(dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _parts(len(targets), chunk):
                scores = finished(linear(hidden[part].to(dtype), *head))
                normalizer[part] = scores.logsumexp(-1)
                scores -= normalizer[part, None]
                logprobs[part] = scores.gather(1, targets[part, None]).squeeze(1)
                entropy[part] = -scores.exp().mul_(scores).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, normalizer)
        ctx.finished, ctx.dtype, ctx.chunk = finished, dtype, chunk
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normalizer = ctx.saved_tensors
        head = weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype)
        to_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        to_weight = _gradient(weight) if ctx.needs_input_grad[1] else None
        to_bias = _gradient(bias) if ctx.needs_input_grad[2] else None
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _parts(len(targets), ctx.chunk):
                states = hidden[part].to(ctx.dtype)
                output = linear(states, *head)
                share = _gradient_of_output(output, ctx.finished, targets[part], normalizer[part], upstream[part])
                if to_hidden is not None:
                    to_hidden[part] = share @ head[0]
                if to_weight is not None:
                    _add_product(to_weight, share, states)
                if to_bias is not None:
                    to_bias += share.sum(0)
                del output, share  # before the next chunk's are made
        return to_hidden, *[None] * 6  # the parameters have theirs


def _parts(count: int, chunk: int) -> Iterator[slice]:
    return (slice(start, start + chunk) for start in range(0, count, chunk))


def _gradient_of_output(
    output: Tensor,  # [C, V] of the head
    finished: Callable[[Tensor], Tensor],
    targets: Tensor,  # [C]
    normalizer: Tensor,  # [C] log sum exp of the logits
    upstream: Tensor,  # [C] the gradient of the log-probs
) -> Tensor:
    with torch.enable_grad():
        logits = finished(output.requires_grad_())
    gradient = (logits.detach() - normalizer[:, None]).exp_().mul_(-upstream[:, None])
    gradient.scatter_add_(1, targets[:, None], upstream[:, None])
    (found,) = torch.autograd.grad(logits, output, gradient)
    return found


def _gradient(parameter: Tensor) -> Tensor:
    """The parameter's gradient, to be added to in place: there is no room for another [V, H]."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _add_product(total: Tensor, share: Tensor, states: Tensor) -> None:
    """``total`` [V, H] += ``share`` [C, V] transposed, times ``states`` [C, H]."""
    if total.dtype == share.dtype:
        total.addmm_(share.T, states)
        return
    for part in _parts(len(total), max(1, CHUNK // len(states[0]))):
        total[part] += share[:, part].T @ states
