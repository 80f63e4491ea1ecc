"""Problems of the package reasoning-gym (arXiv 2505.24760), a hundred tasks that are made in code and checked by it:
the set ``reasoning-gym:TASK``. Whether a problem is held out depends on its prompt alone.
"""

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from itertools import count

import numpy as np

from rl.config import GYM
from rl.problems.rows import normalized
from rl.problems.streams import Side
from rl.problems.tables import ProblemError
from rl.records import Problem
from rl.verifiers.reading.gym import SIZE, data_set

PACKAGE = "reasoning_gym"
LACKING = "reasoning-gym is not installed: pip install 'rlvf[reasoning-gym]', on the verifiers too"
COMPOSITE = "composite"  # which is made of others, and of nothing by itself
HELD_OUT_SHARE = 8  # one problem in so many belongs to the held-out side
FRUITLESS = 4000  # problems of the other side, or that there were, one after the other: there are no others

STREAM = (18,)  # keeps these draws apart from others with the same seed


def tasks() -> list[str]:
    """The names of the tasks. Raises ProblemError without the package."""
    if find_spec(PACKAGE) is None:
        raise ProblemError(LACKING)
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - {COMPOSITE})


def stream_of(task: str) -> Callable[[int, int, Side], Iterator[Problem]]:
    """The stream of a task. Raises ProblemError where there is none of this name."""
    if task not in (known := tasks()):
        near = " or ".join(get_close_matches(task, known, 3))
        words = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
        raise ProblemError(f"{GYM}{task}: no such task; {words}")
    return partial(stream, task)


def stream(task: str, seed: int, step: int, side: Side = "train") -> Iterator[Problem]:
    """The sequence of problems of one step, a function of (task, seed, step, side). Those to train on come again once
    all of them were there; no other comes twice. Raises ProblemError where there are no others."""
    seen: set[str] = set()
    fruitless = 0
    for block in count():
        key = int(np.random.SeedSequence([seed, step, block], spawn_key=STREAM).generate_state(1)[0]) >> 1
        for index in range(SIZE):
            entry = data_set(task, key)[index]
            prompt = entry["question"]
            fruitless += 1
            if is_held_out(prompt) == (side == "held_out") and prompt not in seen:
                seen.add(prompt)
                fruitless = 0
                answer = "" if entry["answer"] is None else str(entry["answer"])
                number = block * SIZE + index
                yield Problem(
                    prompt, answer, f"{task}:{seed}.{step}.{number}", {"task": task, "seed": key, "index": index}
                )
            if fruitless == FRUITLESS:
                if side == "held_out" or not seen:
                    what = "train on" if side == "train" else "hold out: choose a smaller --held_out"
                    raise ProblemError(f"{GYM}{task}: has no more than {len(seen)} different problems to {what}")
                seen.clear()
                fruitless = 0


def is_held_out(prompt: str) -> bool:
    """Whether a problem is held out."""
    return sha256(normalized(prompt).encode()).digest()[0] % HELD_OUT_SHARE == 0
