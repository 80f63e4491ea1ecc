"""Letters that name choices: one of them, or several."""

import re

from rl.verifiers.wording import DOUBTS

_ROMAN = r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)(?![A-Za-z])"
_CHOICE = re.compile(  # \textbf{(B)}\ 12, B)
    r"(?:\s|~)*(?:\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{\s*)?(?:\((?P<inside>[A-E])\)|(?P<before>[A-E])[).:])(?P<value>.*)",
    re.DOTALL,
)
_AND = re.compile(r"(?<![A-Za-z])and(?![A-Za-z])|\\?&|;")
_LETTERS = re.compile(r"(?:[A-J]|\([A-J]\))(?:,+(?:[A-J]|\([A-J]\)))+")


def letter(latex: str) -> str:
    r"""The letter that an expression is, in brackets or \text, too; empty where it is more than one."""
    bare = re.sub(r"\\(?:text|textbf|textit|mathrm|mbox)(?![A-Za-z])|[\s(){}.]", "", latex)
    return bare if re.fullmatch("[A-Za-z]", bare) else ""


def choice(latex: str) -> str | None:
    """The letter of a choice, which its value may follow; empty where that has another one, None of anything else."""
    found = _CHOICE.fullmatch(latex)
    if found is None:
        return None
    words = re.sub(r"\\[A-Za-z]+|[{}]", " ", found["value"])
    if re.search(r"(?<![A-Za-z])[A-E](?![A-Za-z])", words) or any(kind.search(words) for kind in DOUBTS):
        return ""
    return found["inside"] or found["before"] or ""


def choices(latex: str) -> frozenset[str] | None:
    r"""The letters of several choices, in whatever order: A,C, \text{A and C}, (A), (C); None of anything else, such as
    the pair (A,C)."""
    bare = re.sub(r"\s|~|\\[,;:! ]|[{}.]", "", _AND.sub(",", re.sub(_ROMAN, " ", latex)))
    return frozenset(re.findall("[A-J]", bare)) if _LETTERS.fullmatch(bare) else None
