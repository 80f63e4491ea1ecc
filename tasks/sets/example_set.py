"""Examples to learn from, as one training on them sees them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

from infra.security.secrets import masked
from infra.storage.files import PathError
from rl.problems import rows
from rl.problems.examples import Example, ExamplesConfig, read_examples, with_words
from rl.problems.tables import ProblemError
from tasks.sets.named_set import as_typed, read_tables


@dataclass(frozen=True)
class ExampleSet:
    """Examples to train on, and others that are held out."""

    name: str
    train: Sequence[Example]
    held_out: Sequence[Example]

    @property
    def digest(self) -> str:
        """Of all of them, and of which are held out."""
        digest = hashlib.sha256()
        for side in (self.train, self.held_out):
            for each in side:
                told = None if each.instructions is None else asdict(each.instructions)
                digest.update(json.dumps([each.prompt, each.completions, told], ensure_ascii=True).encode())
            digest.update(b"\n")
        return digest.hexdigest()

    def rows(self, seed: int, step: int, batch: int) -> list[int]:
        """Those of `train` that a step learns from: each once an epoch, in another order every time."""
        return rows.draw(range(len(self.train)), seed, step, step * batch, batch, batch)


def conversation(example: Example) -> str:
    """What it begins with, case and blanks aside: turns of one conversation are all held out, or none."""
    earlier = example.instructions.examples if example.instructions else ()
    return rows.normalized(earlier[0][0] if earlier else example.prompt)


def open_examples(config: ExamplesConfig, held_out: int | None, *, plain: bool = False) -> ExampleSet:
    """The examples of the files that are named, all with ``plain`` prompts: those of chats with earlier turns are
    refused. Raises ProblemError and PathError."""
    assert config.path is not None
    given = as_typed(config.path)
    try:
        found = [each for table in read_tables(config.path) for each in read_examples(table, config.columns)]
    except (PathError, ProblemError) as error:
        raise type(error)(str(error).replace(config.path, given)) from error
    if not found:
        raise ProblemError(f"{given}: no examples")
    if plain and (told := next((each for each in found if each.instructions is not None), None)):
        raise ProblemError(
            f"{told.source}: has turns before its question; a reward model is given prompts as they are, so that it "
            "would judge others than it has seen: give one question each"
        )
    try:
        train, kept = rows.split(with_words(found, config.system, config.template), held_out, conversation)
    except ProblemError as error:
        raise ProblemError(f"{given}: {error}") from error
    name = PurePosixPath(masked(config.path)).name.partition(".")[0] or "examples"
    return ExampleSet(name, train, kept)
