r"""Verifier `math`: the last ``\boxed{}`` means the same as the target, by math-verify. `rl.verifiers.isolation` runs
it in a process that can be killed: the library's own time-out does not fire on a tower of powers.

    right         math-verify finds the two equal
    wrong_value   it does not
    no_answer     no ``\boxed{}``
    ambiguous     sides of an equation that differ, or an equation that says no value (x=41=42, 41=42 and 2x=42 are
                  not 42)
    unparsable    it finds no expression there
    empty         nothing but white space

A name before the value is passed over (``P(A)=\frac68=\frac34``), a percent sign is a unit (``42\%`` is 42, not 0.42),
a set is no pair. Numerals of a target that names their base are right in that base alone (``101_2`` is neither 101 nor
``101_3``), and no decimal is an irrational number (1.41421356 is not ``\sqrt2``).
"""

import re
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Float, Rational, preorder_traversal

READ = [LatexExtractionConfig(boxed_match_priority=0)]
MAX_CHARACTERS = 2000

_EQUALS = re.compile(r"(?<![<>!:])=|\\equiv\b")
_SIGNS = re.compile(r"[(\[{)\]}=]|\\equiv\b")
_BASE = re.compile(r"[0-9][0-9A-F]*\s*_\s*(?:\{\s*(\d+)\s*\}|(\d))")  # 101_2, 2A_{16}
_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\\[,;! ]|,\\!|\{,\}|~)\d{3})+(?!\d)")
_NAMES = re.compile(
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi"
    r"|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell|angle|triangle|overline|vec|measuredangle|widehat|hat)\b"
)


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


def same(wanted: list[Any], stated: list[Any]) -> bool:
    """Whether math-verify finds them equal, which passes over bases, and takes a decimal for what it is close to."""
    asked = bases(wanted)
    if asked and asked != bases(stated):
        return False
    if any(isinstance(each, Basic) and is_irrational(each) for each in wanted):
        stated = [exact(each) if isinstance(each, Basic) else each for each in stated]
    return bool(verify(wanted, stated, timeout_seconds=None))


def bases(found: list[Any]) -> list[int]:
    """The indices of its numerals."""
    latex = next((each for each in found if isinstance(each, str)), "")
    return sorted(int(index[1] or index[2]) for index in _BASE.finditer(latex))


def is_irrational(expression: Basic) -> bool:
    """Whether it is written with an irrational number and without a decimal."""
    return not expression.has(Float) and any(part.is_irrational for part in preorder_traversal(expression))


def exact(expression: Basic) -> Any:
    """With its decimals as the fractions that they are."""
    return expression.xreplace({each: Rational(str(each)) for each in expression.atoms(Float)})


def tidied(latex: str) -> str:
    """Without what changes no value: dollars around it, a trailing dot, a percent sign, separators of thousands."""
    latex = latex.strip().strip("$").strip()
    latex = re.sub(r"(?<![.\s])\.\s*$", "", latex)
    latex = re.sub(r"\s*(?:\\?%|\\text\{\s*\\?%\s*\})\s*$", "", latex)
    return _THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), latex)


def is_name(latex: str) -> bool:
    r"""Whether it names what is asked for, as x, P(A), AB, \theta or a+b do, and is no value or equation: 3, \sqrt4."""
    latex = re.sub(r"\\left|\\right", "", latex)
    if re.fullmatch(r"\s*\((?:\s*[A-Za-z]\s*,)*\s*[A-Za-z]\s*\)\s*", latex):
        return True  # (x, y)
    latex = re.sub(r"\([^()]*\)|[_^]\s*(?:\{[^{}]*\}|\w)", "", latex)  # arguments, indices and powers
    latex = re.sub(r"\\(?:text|mathrm|mathbf|mathcal|operatorname)\s*\{([^{}]*)\}", r" \1 ", latex)
    letters = _NAMES.sub(" x ", latex)
    return bool(re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", letters))) and not re.search(r"[0-9]|\\", letters)


def sides(latex: str) -> list[str]:
    """What its equals signs divide, those within brackets aside."""
    found, start, depth = [], 0, 0
    for sign in _SIGNS.finditer(latex):
        depth += (sign[0] in "([{") - (sign[0] in ")]}")
        if depth == 0 and _EQUALS.match(latex, sign.start()):
            found.append(latex[start : sign.start()])
            start = sign.end()
    return [*found, latex[start:]]


def value(stated: str, wanted: str) -> str | None:
    """The one value of an answer that may be an equation; None where there is more than one, or none."""
    pieces = re.split(r",|\\text\s*\{\s*(?:or|and)\s*\}|\\(?:lor|vee)\b", stated)
    named = [piece.split("=") for piece in pieces]
    if len(pieces) > 1 and all(len(each) == 2 and each[0].strip() == named[0][0].strip() for each in named):
        return ",".join(each[1] for each in named)  # x=1 or x=2
    claims = sides(stated)
    if len(claims) == 1 or len(claims) == len(sides(wanted)):
        return stated
    values = [claim for claim in claims if not is_name(claim)]
    seen = [expression(claim) for claim in values]
    if not values or not all(seen) or not all(same(each, seen[-1]) for each in seen[:-1]):
        return None
    return values[-1]


def brackets(latex: str) -> str:
    """What is around it: { for a set, ( for a pair or an open interval, else nothing."""
    latex = re.sub(r"\\left|\\right|\s", "", latex)
    if latex.startswith("\\{") and latex.endswith("\\}"):
        return "{"
    return "(" if re.fullmatch(r"\([^()]*,[^()]*\)", latex) else ""


def reward(problem: Any, completion: str) -> tuple[float, str, dict[str, float]]:
    target = boxed(problem.target)
    wanted = tidied(problem.target if target is None else target)
    gold = expression(wanted)
    if not gold:
        raise ValueError(f"the target {problem.target[:80]!r} is no mathematics that math-verify reads")
    answer = boxed(completion)
    if answer is None:
        return 0.0, "no_answer" if completion.strip() else "empty", {"format": 0.0, "right": 0.0}
    stated = value(tidied(answer), wanted)
    if stated is None:
        return 0.0, "ambiguous", {"format": 0.0, "right": 0.0}
    found = expression(tidied(stated))
    if not found:
        return 0.0, "unparsable", {"format": 0.0, "right": 0.0}
    kinds = {brackets(wanted), brackets(stated)}
    right = float(kinds != {"{", "("} and same(gold, found))
    return right, "right" if right else "wrong_value", {"format": 1.0, "right": right}
