"""Whether the kernels of a decoding step are, on this device, what they are to be: by trying each that a run may need.

Legend: B rows, K heads of keys, R query heads of each, D head size.
"""

import torch
from torch import Tensor

from rl.model.attention import Grid, joint, laid_out
from rl.model.lean import Kernels
from rl.sampling.cache import DecodePass, SlotCache

LENGTH = 200  # positions of a prompt, and of a row: a program takes them in several parts
APART = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}  # as a share, in the mean


def kernel_refusal(kernels: Kernels, heads: int, keys: int, size: int, dtype: torch.dtype, device: torch.device) -> str:
    """Why the kernels are not for a model of so many heads of queries and of keys; nothing where they are. Raises what
    Triton raises where one cannot be compiled."""
    if dtype not in kernels.DTYPES:
        return f"they are not for {dtype}"
    draws = torch.Generator(device).manual_seed(0)
    share = heads // keys
    for queries in kernels.TRIED:
        apart = _apart(kernels, max(1, queries // share), (heads, keys, size), dtype, draws)
        if not apart <= APART[dtype]:  # nor where it is not a number
            return f"their results are others, by {apart:.2g} of their size"
    return ""


def _apart(
    kernels: Kernels, columns: int, model: tuple[int, int, int], dtype: torch.dtype, draws: torch.Generator
) -> float:
    """How far they are from the same attention in float32, for one row more than so many, of two places."""
    heads, K, D = model  # noqa: N806
    device, places = draws.device, [0] * columns + [1]
    rows = len(places)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, device=device).to(dtype)

    at_points, points = (torch.tensor(each, device=device) for each in laid_out(places, 2, columns))
    at = torch.arange(rows, device=device) * 37 % LENGTH
    lengths = torch.tensor([LENGTH, 1], device=device)

    def step(prompts: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]) -> DecodePass:
        cache = SlotCache(rows, 2, LENGTH, LENGTH, share=True, grows=False)
        cache.prompts_kept.layers[0], cache.rows.layers[0] = prompts, own
        return DecodePass(cache, at, LENGTH, Grid(2, columns, at_points, points), lengths, LENGTH)

    prompts = drawn(2, K, LENGTH, D), drawn(2, K, LENGTH, D)
    own = drawn(rows, K, LENGTH, D), drawn(rows, K, LENGTH, D)
    query, cos = drawn(rows, heads * D), torch.ones((rows, 1, D), dtype=dtype, device=device)
    new = drawn(rows, K * D), drawn(rows, K * D)
    narrow = step(prompts, (own[0].clone(), own[1].clone()))
    found = kernels.attend(query, *new, None, 0.0, cos, torch.zeros_like(cos), D**-0.5, narrow, 0)
    for kept, added in zip(own, new, strict=True):
        kept[torch.arange(rows, device=device), :, at] = added.view(rows, K, D)
    wide = step((prompts[0].float(), prompts[1].float()), (own[0].float(), own[1].float()))
    exact = joint(query.float().view(rows, K, -1, D) * D**-0.5, *wide.kept(0)[0], wide).reshape(rows, -1)
    return float((found.float() - exact).norm() / exact.norm())
