r"""Verifier `gsm8k`: one number after ``####`` or in ``\boxed{}``, the last of them, compared exactly.

    right         its value equals the target's
    wrong_value   another number
    no_answer     neither ``####`` nor ``\boxed{}``
    no_number     what stands there does not begin with a number ("#### forty-two", "1/0", "1,23")
    ambiguous     more than one number, an equation or a word of scale ("41 or 42", "x=42", "42 million")
    too_large     more digits than are read
    empty         nothing but white space

A currency sign, thousands commas, a trailing dot, a percent sign and units are passed over: ``#### $1,234.50.`` is
1234.5 and ``\boxed{42\text{ km}^2}`` is 42. ``3/4``, ``\frac{3}{4}`` and ``.75`` are the same number.
"""

import re
from fractions import Fraction

from rl.records import Briefing, Problem, Verdict

BRIEFING = Briefing("Think step by step. End with a line of #### and the answer as one number, for example: #### 42")
MAX_CHARACTERS = 256  # of the answer itself, not of the completion
MAX_DIGITS = 64

_BOXED = re.compile(r"\\boxed\s*\{")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_NUMBER = re.compile(
    r"[\s$€£¥*_`({\[:=]*"
    r"(?P<sign>[+-]?)[\s$€£¥({]*"
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]*)(?P<decimals>\.[0-9]+)?"
    r"(?:\s*/\s*(?P<below>[0-9]+))?"
    r"(?P<rest>.*)",
    re.DOTALL,
)
_UNIT_POWER = re.compile(r"(?<=[A-Za-z}])(?:\s*\^\s*\{?\s*[23]\s*\}?|[23]\b)")  # km^2, m^{3}, cm2
_SCALE = re.compile(r"\b(?:hundred|thousand|million|billion|trillion|dozen)s?\b", re.IGNORECASE)


class NoNumber(ValueError):  # noqa: N818  the name says what is wrong with the answer
    """Text that is not one number; the argument is a reason from above."""


def answer(text: str) -> str | None:
    r"""What stands after the last ``####`` on its line or in the last ``\boxed{}``, whichever comes later."""
    hashes = text.rfind("####")
    boxed = -1
    for found in _BOXED.finditer(text):
        boxed = found.end()
    if boxed > hashes:
        depth = 1
        for at in range(boxed, min(len(text), boxed + MAX_CHARACTERS)):
            depth += (text[at] == "{") - (text[at] == "}")
            if depth == 0:
                return text[boxed:at]
        return None
    return None if hashes < 0 else text[hashes + 4 :].partition("\n")[0]


def number(text: str) -> Fraction:
    """The one number that the text is. Raises NoNumber."""
    if len(text) > MAX_CHARACTERS:
        raise NoNumber("too_large" if text[:MAX_CHARACTERS].strip().isdigit() else "no_number")
    text = text.replace("−", "-").replace("{,}", ",").replace("\\!", "").replace("\\,", "")
    text = text.replace("\\$", "$").replace("\\%", "%")
    text = _TEXT.sub(r" \1 ", _FRACTION.sub(r"\1/\2", text))
    found = _NUMBER.match(text)
    if found is None or not (found["whole"] or found["decimals"]):
        raise NoNumber("no_number")
    rest = _UNIT_POWER.sub("", found["rest"])
    if re.match(r",[0-9]", rest):
        raise NoNumber("no_number")  # 1,23: which of two numbers is meant?
    if re.search(r"[\d=+<>]", rest) or _SCALE.search(rest):
        raise NoNumber("ambiguous")
    whole, decimals, below = found["whole"].replace(",", ""), found["decimals"] or "", found["below"] or "1"
    if len(whole) + len(decimals) + len(below) > MAX_DIGITS:
        raise NoNumber("too_large")
    if not int(below):
        raise NoNumber("no_number")
    value = Fraction(f"{whole or '0'}{decimals}") / int(below)
    return -value if found["sign"] == "-" else value


def target_value(target: str) -> Fraction:
    """The number of a data set's answer: a worked solution that ends in ``#### 72``, or the number alone. Raises
    NoNumber."""
    stated = answer(target)
    return number(target if stated is None else stated)


def check(problem: Problem) -> None:
    """Raise ValueError unless the target has a number."""
    try:
        target_value(problem.target)
    except NoNumber as error:
        raise ValueError(
            f"holds no number to compare with ({error}); write 42, or a solution ending in #### 42"
        ) from error


def verify(problem: Problem, completion: str) -> Verdict:
    """Reward 1 for the target's number, else 0; `format` is 1 where a number could be read.

    Raises ValueError if the target has none.
    """
    check(problem)
    wanted = target_value(problem.target)
    stated = answer(completion)
    try:
        if stated is None:
            raise NoNumber("no_answer" if completion.strip() else "empty")
        value = number(stated)
    except NoNumber as error:
        return Verdict(0.0, str(error), {"format": 0.0, "right": 0.0})
    right = float(value == wanted)
    return Verdict(right, "right" if right else "wrong_value", {"format": 1.0, "right": right})
