"""The decoder of Llama, Qwen2 and Qwen3 for a new token of each row, with fewer calls than transformers makes.

A small model's step takes as long to call as to compute, and a GPU's as long to begin its kernels. So queries and keys
are normalised and rotated together here, and sums are part of the products before them. Of a small model matrices that
take the same input are one matrix: a copy, which `follow` makes again after parameters were written to.

Legend: B rows, H hidden size, Q query heads, K heads of keys, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from rl.model.attention import Seen, Shared, joint

KINDS = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
LARGEST = 2**26  # bytes of the parameters of a model whose matrices are copied


@dataclass(frozen=True)
class Layer:
    """The parameters of a layer, those that take the same input together."""

    before_attention: Tensor  # [H]
    projections: tuple[Tensor, ...]  # [(Q + 2 K) * D, H], or queries', keys' and values'
    biases: tuple[Tensor | None, ...]
    head_norms: Tensor | None  # [Q + K, D]
    output: Tensor  # [H, Q * D]
    before_mlp: Tensor  # [H]
    gate_up: tuple[Tensor, ...]  # [2 I, H], or two of [I, H]
    down: Tensor  # [H, I]


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
        self._gated: Any = gated if kernels is None else kernels.gated
        self._decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
        config = model.config
        self._queries, self._keys = config.num_attention_heads, config.num_key_value_heads
        attention = self._decoder.layers[0].self_attn
        self._size, self._scaling = attention.head_dim, attention.scaling
        self._epsilon = config.rms_norm_eps
        self._copies = _nbytes(model) <= LARGEST
        self._layers: list[Layer] = []
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
        made_of = [(each.data_ptr(), each._version) for each in self._decoder.parameters()]
        if made_of != self._made_of:
            self._layers = [self._packed(layer) for layer in self._decoder.layers]
            self._made_of = made_of

    def _packed(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        biases = None if attention.q_proj.bias is None else tuple(each.bias for each in projections)
        norms = None
        if hasattr(attention, "q_norm"):
            norms = torch.cat(
                [
                    attention.q_norm.weight.expand(self._queries, -1),
                    attention.k_norm.weight.expand(self._keys, -1),
                ]
            )
        weights = self._together(tuple(each.weight for each in projections))
        return Layer(
            layer.input_layernorm.weight,
            weights,
            (None,) * len(weights) if biases is None else self._together(biases),
            norms,
            attention.o_proj.weight,
            layer.post_attention_layernorm.weight,
            self._together((mlp.gate_proj.weight, mlp.up_proj.weight)),
            mlp.down_proj.weight,
        )

    def _together(self, parameters: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.cat(parameters),) if self._copies else parameters

    def __call__(self, ids: Tensor, positions: Tensor, shared: Seen) -> Tensor:
        """[B, 1, H] last hidden states of tokens [B, 1] at these positions, one of each row, unless it `prefills`."""
        hidden: Tensor = self._decoder.embed_tokens(ids)[:, 0]
        cos, sin = self._decoder.rotary_emb(hidden[:, None], positions)  # [B, 1, D] each
        half = self._size // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        for number, layer in enumerate(self._layers):
            hidden = self._attention(number, layer, hidden, cos, sin, shared)
            states = self._rms_norm(hidden, hidden.shape[1:], layer.before_mlp, self._epsilon)
            made = [F.linear(states, weight) for weight in layer.gate_up]
            hidden = torch.addmm(hidden, self._gated(*made), layer.down.t())
        normed: Tensor = self._rms_norm(hidden, hidden.shape[1:], self._decoder.norm.weight, self._epsilon)
        return normed[:, None]

    def _attention(self, number: int, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor, shared: Seen) -> Tensor:
        rows, queries, keys, size = len(hidden), self._queries, self._keys, self._size
        states = self._rms_norm(hidden, hidden.shape[1:], layer.before_attention, self._epsilon)
        made: list[Tensor] = [F.linear(states, *given) for given in zip(layer.projections, layer.biases, strict=True)]
        if self.kernels is not None:
            split = made if len(made) > 1 else made[0].tensor_split([queries * size, (queries + keys) * size], -1)
            query, key, value = split
            norms, epsilon, scaling = layer.head_norms, self._epsilon, self._scaling
            found = self.kernels.attend(query, key, value, norms, epsilon, cos, sin, scaling, shared, number)
            return torch.addmm(hidden, found, layer.output.t())
        shared = cast(Shared, shared)
        heads = (made[0] if len(made) == 1 else torch.cat(made, -1)).view(rows, queries + 2 * keys, size)
        both = heads[:, : queries + keys]
        if layer.head_norms is not None:
            both = F.rms_norm(both, (size,), None, self._epsilon) * layer.head_norms
        both = torch.addcmul(both * cos, both.roll(size // 2, -1), sin)
        own = shared.update(both[:, queries:, None], heads[:, queries + keys :, None], number)
        query = (both[:, :queries] * self._scaling).view(rows, keys, queries // keys, size)
        return torch.addmm(hidden, joint(query, *own, shared).reshape(rows, -1), layer.output.t())


def _nbytes(model: PreTrainedModel) -> int:
    return sum(each.nbytes for each in model.parameters())
