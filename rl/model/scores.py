"""Log-probs and entropies of given tokens, and the gradient of a loss, without the logits of all tokens at once.

[N, V] logits of Qwen3 (V = 151,936) are 0.6 MB a token in float32, and a log-softmax with its gradient holds four such
tensors. Where the loss is a sum over tokens, the gradient of a token's logits is known as soon as its log-prob is: so
logits exist for a chunk of tokens at a time, and nothing is computed twice.

Legend: N tokens, C of them in a chunk, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from rl.model.head import finished_logits
from rl.model.in_place import gradient_of
from rl.model.products import NARROW, gradient_type, in_slices, slices, wide_product, widened

CHUNK = 5 * 2**23  # logits of a chunk at most: 160 MiB in float32, of which there are two
ROWS = 32  # tokens whose logits are summed up at once, and of a chunk at least

# the loss of tokens, a scalar, from their log-probs [C] and their place among the N; the loss of all is the sum
Loss = Callable[[Tensor, slice], Tensor]


@torch.no_grad()
def target_scores(
    model: PreTrainedModel,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    loss: Loss | None = None,
    chunk: int | None = None,
    entropy_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """[N] log-probs of the tokens ``targets`` [N] at ``temperature``, and [N] entropies, from the hidden states [N, H]
    that predict them; in float32, in float64 of a model in float64.

    With ``loss``, its gradient is added to that of the head's parameters, and its gradient with respect to the hidden
    states [N, H] is the third that is returned; with ``entropy_weights`` [N] as well, of the loss less the sum of these
    times the entropies. At most ``chunk`` tokens are taken at a time, and no more than `fast_chunk`.

    With z the logits and logp_n = z_n[target_n] - log sum_v exp(z_nv): d logp_n / d z_nv = 1[v = target_n] -
    softmax(z_n)_v. With p its softmax and H its entropy, d H_n / d z_nv = -p_v (log p_v + H).
    """
    module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    head = _Matrix(module, hidden) if type(module) is nn.Linear else _Module(module)
    summed = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    logprobs, entropy = (hidden.new_empty(len(targets), dtype=summed) for _ in range(2))
    gradient = None if loss is None else torch.empty_like(hidden)
    # a head that is frozen has no gradient that is read and written with each chunk
    trained = any(one.requires_grad for one in module.parameters())
    most = fast_chunk(model.config.get_text_config().vocab_size, trained=trained)
    for part in _parts(len(targets), min(most, chunk or most)):
        target = targets[part, None]
        output = head.forward(hidden[part], loss is not None)
        with torch.set_grad_enabled(loss is not None):
            logits = finished_logits(model, output.requires_grad_(loss is not None))
            logits = logits if temperature == 1 else logits / temperature  # a copy less
        scores = logits.detach()
        for few in torch.split(scores, ROWS):  # whose exponentials are a tensor of their own
            few -= few.logsumexp(-1, keepdim=True)
        logprobs[part] = scores.gather(1, target).squeeze(1)
        chances = scores.exp()
        entropy[part] = -scores.mul_(chances).sum(-1)  # scores: p log p from here on
        if loss is not None and gradient is not None:
            upstream = _gradient_of_loss(loss, logprobs[part], part)[:, None]
            if entropy_weights is not None:
                scores.addcmul_(chances, entropy[part, None]).mul_(entropy_weights[part, None])
            share = chances.mul_(-upstream).scatter_add_(1, target, upstream)
            if entropy_weights is not None:
                share += scores
            if logits is not output:
                (share,) = torch.autograd.grad(logits, output, share)
            gradient[part] = head.backward(share)
            del share
        del output, logits, scores, chances  # before the next chunk's are made
    return logprobs, entropy, gradient


def fast_chunk(vocabulary: int, *, trained: bool = True) -> int:
    """Tokens of a chunk, beyond which larger ones gain nothing; ``trained``: whether the head is."""
    return max(1, (CHUNK if trained else CHUNK // 2) // vocabulary)


def _parts(count: int, size: int) -> Iterator[slice]:
    """As few parts as there may be, of about the same size."""
    parts = -(-count // size)
    return (slice(part * count // parts, (part + 1) * count // parts) for part in range(parts))


def _gradient_of_loss(loss: Loss, logprobs: Tensor, part: slice) -> Tensor:
    """[C] with respect to the log-probs [C]."""
    with torch.enable_grad():
        leaf = logprobs.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf, part), leaf)
    return gradient


class _Module:
    """Any head, by autograd: the gradient of its parameters is made for each chunk and added."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def forward(self, hidden: Tensor, trained: bool) -> Tensor:
        with torch.set_grad_enabled(trained):
            self._hidden = hidden.detach().requires_grad_(trained)
            self._output: Tensor = self._module(self._hidden)
        mine: Tensor = self._output.detach().clone()  # to be changed in place
        return mine

    def backward(self, share: Tensor) -> Tensor:
        self._output.backward(share)  # type: ignore[no-untyped-call]
        assert self._hidden.grad is not None
        return self._hidden.grad


class _Matrix:
    """A head that is a matrix, and a bias or none: the gradient of its parameters is added up in place, because for
    another [V, H] there is no room."""

    def __init__(self, head: nn.Linear, hidden: Tensor) -> None:
        kind = hidden.device.type
        own = torch.promote_types(head.weight.dtype, hidden.dtype)  # a frozen head may be narrower than the arithmetic
        self._dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else own
        self._head = head
        self._in_slices = in_slices(self._dtype, hidden.device)
        self._weight = head.weight if self._in_slices else head.weight.to(self._dtype)
        self._bias = None if head.bias is None else head.bias.to(self._dtype)

    def forward(self, hidden: Tensor, _: bool) -> Tensor:
        self._hidden = hidden.to(self._dtype)
        if self._dtype in NARROW:
            return wide_product(self._hidden, self._weight, self._bias)
        return linear(self._hidden, self._weight, self._bias)

    def backward(self, share: Tensor) -> Tensor:
        if self._bias is not None and self._head.bias.requires_grad:
            gradient_of(self._head.bias).add_(share.sum(0))
        if self._in_slices:
            return self._backward_in_slices(share)
        share = share.to(self._dtype)
        with torch.autocast(share.device.type, enabled=False):
            if self._head.weight.requires_grad:
                _add_product(gradient_of(self._head.weight), share, self._hidden)
            return share @ self._weight

    def _backward_in_slices(self, share: Tensor) -> Tensor:
        kind = gradient_type(self._dtype, share.device)
        with widened(self._dtype, share.device):
            hidden = self._hidden.to(kind)
            if self._head.weight.requires_grad:
                _add_product(gradient_of(self._head.weight), share, hidden)
            made = torch.zeros_like(self._hidden, dtype=torch.float32)
            for part in slices(self._weight):
                made += share[:, part].to(kind) @ self._weight[part].to(self._dtype).to(kind)
            return made


def _add_product(gradient: Tensor, share: Tensor, hidden: Tensor) -> None:
    """Of shares [C, V] and hidden states [C, H], to a gradient [V, H] that may be of another type."""
    if gradient.dtype == share.dtype == hidden.dtype:
        gradient.addmm_(share.T, hidden)
        return
    for part in slices(gradient):
        gradient[part] += share[:, part].to(hidden.dtype).T @ hidden
