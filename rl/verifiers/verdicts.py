"""Problems and verdicts on their way to and from a verifier in another process."""

from math import nan
from typing import Any

from rl.records import Problem, Verdict
from rl.verifiers.parts import MAX_PARTS, MAX_REASON, MAX_REWARD, TAKEN, is_part_name

NOT_TRIED = "not_tried"  # the reason of what a verifier that hangs was not asked
NOT_JUDGED = "not_judged"  # of what it was not asked because it hangs on that problem alone


def failed(reason: str, error: str) -> Verdict:
    """The verdict of a verifier that failed."""
    return Verdict(nan, reason, error=error)


def as_json(problem: Problem) -> dict[str, Any]:
    """What a verifier in another process is given of a problem."""
    given = {"prompt": problem.prompt, "target": problem.target, "source": problem.source, "extra": dict(problem.extra)}
    return given | ({"no_target": problem.no_target} if problem.no_target else {})


def checked(reward: Any, reason: Any, parts: Any) -> Verdict:
    """The verdict that another process gave, which is believed no more than its code is.

    Raises ValueError where it is none; the text follows the name of that process.
    """
    if not _finite(reward):
        raise ValueError(f"gave the reward {str(reward)[:60]!r}; it has to be a number")
    if not isinstance(reason, str):
        raise ValueError("gave a reason that is no text")
    if not isinstance(parts, dict) or len(parts) > MAX_PARTS or not all(map(_finite, parts.values())):
        raise ValueError("gave parts that are not numbers by name")
    short = {name[:MAX_REASON]: float(part) for name, part in parts.items()}
    if odd := [name for name in short if not is_part_name(name)]:
        raise ValueError(f"gave a part called {odd[0]!r}; it has to be a short word other than {', '.join(TAKEN)}")
    return Verdict(float(reward), reason[:MAX_REASON], short)


def _finite(value: object) -> bool:
    """Whether it is a number that a float holds; JSON may have whole numbers of any size."""
    return isinstance(value, int | float) and abs(value) <= MAX_REWARD
