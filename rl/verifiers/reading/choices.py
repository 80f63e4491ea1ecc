"""Letters that name choices: one of them, or several."""

import re

from rl.verifiers.reading.wording import DOUBTS, OTHER_NUMBER

_ROMAN = r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)(?![A-Za-z])"
_CHOICE = re.compile(  # \textbf{(B)}\ 12, B)
    r"(?:\s|~)*(?:\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{\s*)?(?:\((?P<inside>[A-J])\)|(?P<before>[A-E](?=[).:])|[F-J](?=\)))[).:])(?P<value>.*)",
    re.DOTALL,
)
_STATEMENT = re.compile(  # what a choice may say; alone, No is none that takes the letter back
    r"\A\W*A(?=\s+(?!(?:or|and|is|was|are|if|not|instead|rather|but)\b)[a-z]{2})|\A\W*No\W*\Z"
    r"|(?i:\b(?:(?:less|fewer)\s+than|at\s+(?:least|most)|not\s+enough|can\s*not\s+be\s+determined)\b)"
)
_REMARK = re.compile(r"\A\W*(?:or|and)\b", re.IGNORECASE)
_AND = re.compile(r"(?<![A-Za-z])and(?![A-Za-z])|\\?&|;")
_SET = re.compile(r"\s*(?:\\left\s*)?\\\{((?:(?!\\[{}]).)*?)(?:\\right\s*)?\\\}\s*", re.DOTALL)
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
    words = _STATEMENT.sub(" ", re.sub(r"\\[A-Za-z]+|[{}]", " ", found["value"]))
    doubts = (_REMARK, *(kind for kind in DOUBTS if kind is not OTHER_NUMBER))
    if re.search(r"(?<![A-Za-z])[A-E](?![A-Za-z])|\([F-J]\)", words) or any(kind.search(words) for kind in doubts):
        return ""
    return found["inside"] or found["before"] or ""


def unbraced(latex: str) -> str:
    r"""What is within the braces of a set: A,C of \{A,C\}; anything else as it is."""
    found = _SET.fullmatch(latex)
    return found[1] if found else latex


def choices(latex: str) -> frozenset[str] | None:
    r"""The letters of several choices, in whatever order: A,C, \text{A and C}, (A), (C); None of anything else, such as
    the pair (A,C)."""
    bare = re.sub(r"\s|~|\\[,;:! ]|[{}.]", "", _AND.sub(",", re.sub(_ROMAN, " ", latex)))
    return frozenset(re.findall("[A-J]", bare)) if _LETTERS.fullmatch(bare) else None
