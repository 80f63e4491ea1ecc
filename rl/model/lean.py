"""The decoder of Llama, Qwen2 and Qwen3 for a new token of each row, with fewer calls than transformers makes.

A small model's step takes as long to call as to compute, and a GPU's as long to begin its kernels. So queries and keys
are normalised and rotated together here, and sums are part of the products before them. Of a small model matrices are
laid out as is fastest: copies, which `follow` makes again after parameters were written to.

Legend: B rows, H hidden size, Q query heads, K heads of keys, D head size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from rl.model.attention import Seen, Shared, joint
from rl.model.head import finished_logits, head_logits

KINDS = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
LARGEST = 2**26  # bytes of the parameters of a model whose matrices are copied


@dataclass(frozen=True)
class Layer:
    """The norms of a layer, and its products."""

    before_attention: Tensor  # [H]
    projections: Callable[[Tensor], Sequence[Tensor]]
    head_norms: Tensor | None  # [Q + K, D]
    output: Callable[[Tensor, Tensor], Tensor]
    before_mlp: Tensor  # [H]
    gates: Callable[[Tensor], Tensor]
    down: Callable[[Tensor, Tensor], Tensor]


class Linear(Protocol):
    """Products with a layer's matrices, each a function of states [B, ...]."""

    def projections(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor] | None
    ) -> Callable[[Tensor], Sequence[Tensor]]:
        """Of queries, keys and values."""

    def gates(self, gates: Tensor, up: Tensor) -> Callable[[Tensor], Tensor]:
        """The SiLU of gates [I, H] times what they let through, of as many."""

    def adds(self, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Hidden states that are not used again, first, plus the product of the other ones."""


class TorchLinear:
    """By PyTorch: of a small model with one copy of the matrices that take the same input."""

    def __init__(self, together: bool, gated: Callable[..., Tensor]) -> None:
        """`gated`: of `Kernels`."""
        self._together = together
        self._gated = gated

    def projections(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor] | None
    ) -> Callable[[Tensor], Sequence[Tensor]]:
        if not self._together:
            pairs = list(zip(weights, biases or (None,) * len(weights), strict=True))
            return lambda states: [F.linear(states, *pair) for pair in pairs]
        widths = [len(each) for each in weights]
        weight, bias = torch.cat(tuple(weights)), None if biases is None else torch.cat(tuple(biases))
        return lambda states: F.linear(states, weight, bias).split_with_sizes(widths, -1)

    def gates(self, gates: Tensor, up: Tensor) -> Callable[[Tensor], Tensor]:
        weights = (torch.cat((gates, up)),) if self._together else (gates, up)
        return lambda states: self._gated(*(F.linear(states, weight) for weight in weights))

    def adds(self, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda hidden, states: torch.addmm(hidden, states, weight.t())


class Kernels(Protocol):
    """What a device computes faster than tensors do: `rl.model.kernels` on CUDA, `rl.model.cpu_kernels` elsewhere."""

    DTYPES: Sequence[torch.dtype]  # of the models that they are for
    TRIED: Sequence[int]  # numbers of queries that share keys, by which they are tried
    PREFILLS: bool  # whether rows may be tokens that follow one another, too: see `Seen.kept_in`

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        norms: Tensor | None,
        epsilon: float,
        cos: Tensor,
        sin: Tensor,
        scaling: float,
        shared: Seen,
        layer: int,
    ) -> Tensor:
        """[B, K * R * D] of one new token of each row, whose key and value are kept."""

    def rms_norm(self, states: Tensor, shape: Sequence[int], weight: Tensor, epsilon: float) -> Tensor:
        """As `torch.nn.functional.rms_norm`."""

    def gated(self, states: Tensor, up: Tensor | None = None) -> Tensor:
        """As `gated` below."""

    @property
    def linear(self) -> Linear | None:
        """Products of a small model that are faster than PyTorch's, if there are any."""


def gated(states: Tensor, up: Tensor | None = None) -> Tensor:
    """[B, I] the SiLU of gates times what they let through: of states [B, 2 I], or of two [B, I]."""
    gate, up = states.chunk(2, -1) if up is None else (states, up)
    return F.silu(gate).mul_(up)


class LeanDecoder:
    """Of one model."""

    def __init__(self, model: PreTrainedModel, kernels: Kernels | None = None) -> None:
        """`kernels`: by which attention is computed, if there are any."""
        self.kernels = kernels
        self._rms_norm: Any = F.rms_norm if kernels is None else kernels.rms_norm
        self._decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
        config = model.config
        self._queries, self._keys = config.num_attention_heads, config.num_key_value_heads
        attention = self._decoder.layers[0].self_attn
        self._size, self._scaling = attention.head_dim, attention.scaling
        self._epsilon = config.rms_norm_eps
        self._model = model
        copies = _nbytes(model) <= LARGEST
        own = kernels.linear if kernels is not None and copies else None
        self._linear: Linear = own or TorchLinear(copies, gated if kernels is None else kernels.gated)
        self._layers: list[Layer] = []
        self._head: Callable[[Tensor], Sequence[Tensor]] | None = None  # if it is laid out
        self._made_of: object = None
        self.follow()

    @property
    def prefills(self) -> bool:
        """Whether rows may be tokens that follow one another, too."""
        return self.kernels is not None and self.kernels.PREFILLS

    @property
    def heads(self) -> tuple[int, int, int]:
        """Q, K and D."""
        return self._queries, self._keys, self._size

    @staticmethod
    def takes(model: PreTrainedModel) -> bool:
        """Whether it is one of the kinds above, as transformers made it: without adapters, of one type, and small or on
        a GPU."""
        if type(model) not in KINDS or (model.device.type != "cuda" and _nbytes(model) > LARGEST):
            return False
        last, first = [], []
        for layer in model.get_decoder().layers:  # type: ignore[no-untyped-call]
            attention, mlp = layer.self_attn, layer.mlp
            last += [attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
            first += [attention.q_proj, attention.k_proj, attention.v_proj]
        plain = all(type(module) is nn.Linear and "forward" not in vars(module) for module in (*first, *last))
        return (
            plain
            and all(module.bias is None for module in last)
            and len({each.dtype for each in model.parameters()}) == 1
            and model.config.hidden_act == "silu"
        )

    @torch.no_grad()
    def follow(self) -> None:
        """Make the matrices again if a parameter was written to or replaced."""
        made_of = [(each.data_ptr(), each._version) for each in self._model.parameters()]
        if made_of != self._made_of:
            self._layers = [self._packed(layer) for layer in self._decoder.layers]
            head: Any = self._model.get_output_embeddings()  # type: ignore[no-untyped-call]
            if not isinstance(self._linear, TorchLinear) and type(head) is nn.Linear:
                self._head = self._linear.projections([head.weight], None if head.bias is None else [head.bias])
            self._made_of = made_of

    def _packed(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        biases = None if attention.q_proj.bias is None else [each.bias for each in projections]
        norms = None
        if hasattr(attention, "q_norm"):
            norms = torch.cat(
                [
                    attention.q_norm.weight.expand(self._queries, -1),
                    attention.k_norm.weight.expand(self._keys, -1),
                ]
            )
        return Layer(
            layer.input_layernorm.weight,
            self._linear.projections([each.weight for each in projections], biases),
            norms,
            self._linear.adds(attention.o_proj.weight),
            layer.post_attention_layernorm.weight,
            self._linear.gates(mlp.gate_proj.weight, mlp.up_proj.weight),
            self._linear.adds(mlp.down_proj.weight),
        )

    def __call__(self, ids: Tensor, positions: Tensor, shared: Seen) -> Tensor:
        """[B, 1, H] last hidden states of tokens [B, 1] at these positions, one of each row, unless it `prefills`."""
        hidden: Tensor = self._decoder.embed_tokens(ids)[:, 0]
        cos, sin = self._decoder.rotary_emb(hidden[:, None], positions)  # [B, 1, D] each
        half = self._size // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        for number, layer in enumerate(self._layers):
            hidden = self._attention(number, layer, hidden, cos, sin, shared)
            states = self._rms_norm(hidden, hidden.shape[1:], layer.before_mlp, self._epsilon)
            hidden = layer.down(hidden, layer.gates(states))
        normed: Tensor = self._rms_norm(hidden, hidden.shape[1:], self._decoder.norm.weight, self._epsilon)
        return normed[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        """As `rl.model.head.head_logits`."""
        if self._head is None:
            return head_logits(self._model, hidden)
        return finished_logits(self._model, self._head(hidden)[0])

    def _attention(self, number: int, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor, shared: Seen) -> Tensor:
        rows, queries, keys, size = len(hidden), self._queries, self._keys, self._size
        states = self._rms_norm(hidden, hidden.shape[1:], layer.before_attention, self._epsilon)
        query, key, value = layer.projections(states)
        if self.kernels is not None:
            norms, epsilon, scaling = layer.head_norms, self._epsilon, self._scaling
            found = self.kernels.attend(query, key, value, norms, epsilon, cos, sin, scaling, shared, number)
            return layer.output(hidden, found)
        shared = cast(Shared, shared)
        heads = torch.cat([query, key, value], -1).view(rows, queries + 2 * keys, size)
        both = heads[:, : queries + keys]
        if layer.head_norms is not None:
            both = F.rms_norm(both, (size,), None, self._epsilon) * layer.head_norms
        both = torch.addcmul(both * cos, both.roll(size // 2, -1), sin)
        own = shared.update(both[:, queries:, None], heads[:, queries + keys :, None], number)
        query = (both[:, :queries] * self._scaling).view(rows, keys, queries // keys, size)
        return layer.output(hidden, joint(query, *own, shared).reshape(rows, -1))


def _nbytes(model: PreTrainedModel) -> int:
    return sum(each.nbytes for each in model.parameters())
