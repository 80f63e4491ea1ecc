"""Targets of the verifier `math` as the files of problems write them: mathematics, in a box or behind ####, or a number
with what it counts, in words."""

import re

from rl.records import Problem
from rl.verifiers.reading.units import below, goes_on, has_more, parts
from rl.verifiers.reading.wording import DOUBTS, INEXACT, OTHER_NUMBER
from rl.verifiers.reading.written import TEXT, boxed

BETWEEN = r"(?:\s|~|\\[,;:! ]|\\q?quad\b)"
ABOUT = re.compile(r"\\(?:approx|sim|simeq|l?dots|cdots)\b|\.\.\.|…|≈")
_NAMED = re.compile(  # June 20, where the number is part of a name
    rf"\s*(?:\\(?:text|textbf|mathrm|mbox)\s*\{{\s*[A-Za-z]{{3,}}|[A-Z][a-z]{{2,}}(?![A-Za-z]))[^{{}}0-9=]*\}}?{BETWEEN}*[0-9]"
)
MAX_CHARACTERS = 2000
MAX_WORDS = 8  # of a target without a number: infinitely many solutions
_ROW = 5  # words beside numbers that no target has in a row: all real numbers except 3 has four

_TEXT = re.compile(r"\\(?:text\w*|math[a-z]+|mbox|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORDS = re.compile(r"[A-Za-z]+(?:[,;:'’]?\s*[ '’][A-Za-z]+)*")
_VERB = re.compile(r"\b(?:is|are|was|were|has|have|had|will|would|can|gets?|needs?|so|therefore)\b", re.IGNORECASE)
_COUNTED = re.compile(  # letters in capitals, and fewer than four of them, may be variables
    r"(?P<number>[-+]?[0-9][0-9.,]*(?:\s*/\s*[0-9]+|\s+[0-9]+\s*/\s*[0-9]+)?)\s+"
    r"(?P<unit>(?:(?:sq|square|cubic|per)\.?\s+)?[A-Za-z][a-z]{3,}(?:[\s/-]+[A-Za-z]+){0,3})\.?"
)
_MATHEMATICS = re.compile(
    r"\b(?:alpha|beta|gamma|delta|theta|lambda|sigma|omega|sqrt|infinity|times|plus|minus|arc[a-z]+"
    r"|(?:sin|cos|tan|cot|sec|csc|log)[a-z]?)\b"
)
_SAID = re.compile(  # behind the number of an answer
    r"(?P<number>.*[0-9}])(?:\s|~|\\[,;:! ])*"
    r"(?:\\(?:text|textbf|mathrm|mbox)\s*\{(?P<text>[^{}]*)\}|(?<![0-9}])(?P<words>[A-Za-z][A-Za-z\s/-]*))(?P<power>\s*\^\s*\{?[23]\}?|[²³])?\.?\s*",
    re.DOTALL,
)

_PRINTED = re.compile(
    rf"{BETWEEN}|\\(?:left|right|text|textbf|mathrm|mbox|displaystyle)(?![A-Za-z])|[{{}}$]|\.\Z|(?<=[a-z])s(?![a-z])"
)


def asked(target: str) -> str:
    """The answer of a worked solution: in its last box, or else behind its last ####, as `gsm8k` has it; anything else
    as it is."""
    held = boxed(target, MAX_CHARACTERS)
    if held is not None:
        return held
    return target.rpartition("####")[2].strip().partition("\n")[0].strip() if "####" in target else target


def check(problem: Problem) -> None:
    """Raise ValueError for a target in sentences: of their letters math-verify makes variables, and no answer is ever
    right."""
    latex = asked(problem.target)
    if not latex.strip():
        raise ValueError(r"holds nothing to compare with; write the value alone, in \boxed{} or behind ####")
    rows = [found[0] for found in _WORDS.finditer(_TEXT.sub("#", latex))]
    lengths = [len(re.findall("[A-Za-z]+", row)) for row in rows]
    if counted(latex) is not None:
        return
    if re.search("[0-9]", latex):
        prose = any(
            length >= _ROW or (length > 1 and _VERB.search(row)) for row, length in zip(rows, lengths, strict=True)
        )
    else:
        prose = max(lengths, default=0) > MAX_WORDS
    if prose:
        raise ValueError(r"is a sentence and no mathematics; write the value alone, in \boxed{} or behind ####")


def counted(latex: str) -> tuple[str, str] | None:
    """The number and the words of a target such as ``72 apples``; None of anything else."""
    found = _COUNTED.fullmatch(latex.strip())
    if found is None or any(kind.search(found["unit"]) for kind in (*DOUBTS, _MATHEMATICS)):
        return None
    return found["number"], found["unit"]


def in_unit(stated: str, unit: str) -> str | None:
    """An answer without the words of a unit, of which it may leave some out; None where it has others."""
    found = _SAID.fullmatch(stated)
    if found is None:
        return stated
    said = (found["words"] if found["text"] is None else found["text"]) + (found["power"] or "")
    ours, theirs = parts(unit), parts(said)
    less = _nouns(said) <= _nouns(unit) and below(ours) == below(theirs)
    return found["number"] if less or ours == theirs or goes_on(ours, theirs) else None


def _nouns(words: str) -> set[str]:
    """The words of a text, each in the singular."""
    return {word.lower().removesuffix("s") for word in re.findall("[A-Za-z]+|[^A-Za-z\\s./-]", words)}


def is_worded(wanted: str) -> bool:
    r"""Whether a target says more than a value: 2\text{ hours }30\text{ minutes}, 1.5\text{ million}, 1,2,\ldots,n,
    \text{June 20}. Of these math-verify reads what stands before the first word."""
    return bool(has_more(wanted) or ABOUT.search(wanted) or _NAMED.match(wanted)) or any(
        kind.search(text.strip()) for text in TEXT.findall(wanted) for kind in (INEXACT, OTHER_NUMBER)
    )


def same_text(wanted: str, stated: str) -> bool:
    """Whether both are the same but for what changes nothing in print."""
    ours, theirs = (_PRINTED.sub("", latex).lower() for latex in (wanted, stated))
    return ours == theirs
