r"""Verifier `math`: the last ``\boxed{}`` means the same as the target, by math-verify. `rl.verifiers.isolation` runs
it in a process that can be killed: the library's own time-out does not fire on a tower of powers.

    right         math-verify finds the two equal
    wrong_value   it does not
    no_answer     no ``\boxed{}``
    ambiguous     more than one equals sign, or one between numbers (x=41=42 and 41=42 are not 42)
    unparsable    it finds no expression there
    empty         nothing but white space
"""

import re
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

READ = [LatexExtractionConfig(boxed_match_priority=0)]
MAX_CHARACTERS = 2000


def boxed(text: str) -> str | None:
    r"""The inside of the last ``\boxed{}``, None if there is none or it is not closed."""
    start = -1
    for found in re.finditer(r"\\boxed\s*\{", text):
        start = found.end()
    if start < 0:
        return None
    depth = 1
    for at in range(start, min(len(text), start + MAX_CHARACTERS)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[start:at]
    return None


def expression(latex: str) -> list[Any]:
    """As math-verify sees it; empty if it sees nothing."""
    found: list[Any] = parse(rf"\boxed{{{latex}}}", extraction_config=READ, parsing_timeout=None)
    return found


def reward(problem: Any, completion: str) -> tuple[float, str, dict[str, float]]:
    wanted = boxed(problem.target)
    gold = expression(problem.target.strip().strip("$") if wanted is None else wanted)
    if not gold:
        raise ValueError(f"the target {problem.target[:80]!r} is no mathematics that math-verify reads")
    stated = boxed(completion)
    if stated is None:
        return 0.0, "no_answer" if completion.strip() else "empty", {"format": 0.0, "right": 0.0}
    claims = re.split(r"(?<![<>!:])=|\\equiv\b", stated)
    if len(claims) > 2 or (len(claims) == 2 and not re.search("[A-Za-z]", claims[0])):
        return 0.0, "ambiguous", {"format": 0.0, "right": 0.0}
    found = expression(stated)
    if not found:
        return 0.0, "unparsable", {"format": 0.0, "right": 0.0}
    right = float(verify(gold, found, timeout_seconds=None))
    return right, "right" if right else "wrong_value", {"format": 1.0, "right": right}
