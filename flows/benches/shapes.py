"""What `rlvf bench generate` generates from: plain data, so that a mistake in the command line is answered at once."""

from dataclasses import dataclass, replace
from typing import get_args

from rl.config import TINY, PolicyConfig

DTYPES: tuple[str, ...] = get_args(PolicyConfig.model_fields["dtype"].annotation)
LARGE, LARGE_LAYERS = "0.6B", 28
ENGINES = ("rlvf", "generate", "generate_batch")  # the last two are transformers'


@dataclass(frozen=True)
class Shape:
    """A model, and how much of it is generated."""

    name: str
    prompts: int
    samples: int  # completions of each
    tokens: int  # new ones of each completion
    layers: int = 0  # of random weights of the shape of Qwen3-0.6B
    model: str = ""  # to be loaded; where there is neither, the tiny one made in code
    dtype: str = "auto"  # as `policy.dtype`

    @property
    def sequences(self) -> int:
        return self.prompts * self.samples

    def changed(self, prompts: int | None, samples: int | None, tokens: int | None, layers: int | None) -> "Shape":
        """With other counts where they are given; fewer layers, of a shape that has them, are said in its name."""
        layers = layers if layers and self.layers else self.layers
        return replace(
            self,
            name=self.name if layers == self.layers else f"{self.name}, {layers} layer{'s' * (layers > 1)}",
            prompts=prompts or self.prompts,
            samples=samples or self.samples,
            tokens=tokens or self.tokens,
            layers=layers,
        )


SHAPES = {TINY: Shape(TINY, 32, 8, 40), LARGE: Shape(LARGE, 8, 8, 64, LARGE_LAYERS)}


def of_policy(model: str) -> Shape:
    """The shape of what `policy.model` takes."""
    return SHAPES[TINY] if model == TINY else Shape(model, 8, 8, 64, model=model)
