"""Verifier `reasoning_gym`: what the package's own check of the task says of the answer, from 0 to 1.

The answer is what stands in the last ``<answer>…</answer>``, or else the whole completion behind its thinking. A
problem is known by its task and two numbers, from which the package makes it again: what a check needs may be no JSON.
"""

from functools import lru_cache
from typing import Any

from rl.verifiers.reading.written import answered

SIZE = 1000  # problems of one of the package's data sets: some make all of them at once


@lru_cache(16)
def data_set(task: str, seed: int) -> Any:
    """One of the package's data sets, whose entries are made when they are asked for."""
    from reasoning_gym.factory import create_dataset

    return create_dataset(task, seed=seed, size=SIZE)


def reward(problem: Any, completion: str) -> tuple[float, str]:
    found = data_set(problem.extra["task"], problem.extra["seed"])
    entry = found[problem.extra["index"]]
    if entry["question"] != problem.prompt:
        raise ValueError("reasoning-gym makes another problem here: take the same version of it on all machines")
    answer = answered(completion).strip()
    if not answer:
        return 0.0, "no_answer"
    try:
        score = float(found.score_answer(answer, entry))
    except Exception:  # noqa: BLE001 - some checks take for granted that an answer is a number, or a list
        found.score_answer(entry["answer"], entry)  # raises where it is not the answer's fault
        return 0.0, "unreadable"
    return score, "right" if score == 1 else "wrong_value" if score == 0 else "in_part"
