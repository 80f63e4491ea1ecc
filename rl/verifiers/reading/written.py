"""Arithmetic as models write it, brought to what `rl.arithmetic` reads: out of code fences, quotes, ``print(…)`` and
LaTeX, with the signs of a keyboard (``5 × 7`` is ``5 * 7``), an equation by the side that says how (``5*7 = 35`` is
``5*7``, ``= 35`` is ``35``), without comments and labels."""

import re
from collections import deque

from rl.arithmetic import MAX_CHARACTERS, UnfitExpression, evaluate

MAX_SIDES = 8

_FENCE = re.compile(r"```[A-Za-z0-9]*[ \t]*\n?(?P<inside>.*?)(?:```|\Z)", re.DOTALL)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_TIMES = re.compile(r"(?<=[\d)])\s*[xX]\s*(?=[\d(])")
_LABEL = re.compile(
    r"(?:\*\*(?:final\s+)?answer:?\*\*\s*:?"
    r"|(?:(?:so|therefore|thus|hence|sure)\b[,!:]?\s+)?(?:here(?:\s+is|['’]s)\s+)?(?:the\s+)?"
    r"(?:(?:final|python|arithmetic|correct|resulting)\s+){0,3}(?:answer|expression|solution|result)(?:\s+is)?\s*[:=]?"
    r"|(?:so|therefore|thus|hence|sure)\b[,!:]?(?=\s)|[A-Za-z_]\w*\s*=)\s*",
    re.IGNORECASE,
)
SIGNS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})
WORDS = {"\\times": "*", "\\cdot": "*", "\\div": "/", "\\left": "", "\\right": "", "\\,": " ", "\\ ": " "}
AROUND = " \t\n$✓✔✅"
_COMMENT = re.compile(r"(?m)[ \t]+#[^\n]*$|^#[^\n]*\n?")
_REMARK = re.compile(r"(?m)(?<=[^\s#])[ \t]{1,99}#[^\n]*$")
_EQUALS = re.compile(r"(?<=[^\s=<>!~])[ \t]{0,9}==(?!=)(?=[ \t]*[^\s=])")  # as Python writes it
_QUOTED = re.compile(r"([\"'])(?P<inside>[^\"']*)\1|“(?P<curly>[^“”]*)”")
_PRINTED = re.compile(
    r"(?P<name>[A-Za-z_]\w*)[ \t]*=[ \t]*(?P<value>[^=\n]+?)\s*\n\s*print\((?P=name)\)"
    r"|print[ \t]*\((?P<inside>[^\n]*)\)"
)
_END = re.compile(r"(?:<\|[A-Za-z0-9_]{1,40}\|>|</s>|<end_of_turn>|<eos>|\s)+\Z")  # of a turn, written as text
_MARKED = re.compile(r"(\*\*|\*|__|_|`+)(\S|\S.*\S)\1", re.DOTALL)  # Markdown around it
_ROMAN = "textrm|textnormal|textsf|textup|mbox|hbox"  # which are as good as \\text
ROMAN = re.compile(rf"\\(?:{_ROMAN})(?=\s*\{{)")
TEXT = re.compile(rf"\\(?:text|{_ROMAN}|textbf|textit|mathrm|mathbf)\s*\{{([^{{}}]*)\}}")  # of LaTeX
BOX = re.compile(  # without braces TeX takes one sign: \boxed 6 is one, \boxed 42 is a box around 4 alone
    r"\\boxed\s*(?:\{|(?P<bare>[0-9]|(?<=\s)[A-Za-z])(?=[.,;]?(?:[ \t]+[A-Za-z]{2}|[ \t]*(?:\n|\Z|\$|\\[)\]]))))"
)


class WrongEquation(ValueError):  # noqa: N818  the name says what is wrong with it
    """Sides that are not the same number, or one that is missing."""


def behind_thinking(text: str) -> str:
    """What stands behind the thinking, and nothing where it has not come to an end; a second </think> at the end of it,
    which closes nothing, is passed over."""
    *thoughts, behind = text.split("</think>")
    while len(thoughts) > 1 and "<think>" not in thoughts[-1] and (not behind or _END.fullmatch(behind)):
        behind = thoughts.pop()
    return "" if "<think>" in behind else behind


def answered(text: str) -> str:
    """The inside of the last ``<answer>``, or else what is behind the thinking, without the end of the turn."""
    text = behind_thinking(text)
    if ends := _END.search(text, max(0, len(text) - MAX_CHARACTERS)):
        text = text[: ends.start()]
    return text.rpartition("<answer>")[2].partition("</answer>")[0] if "<answer>" in text else text


def fenced(text: str) -> str:
    """The inside of the last code fence that has one, without comments, else the text."""
    if "```" not in text:
        return text
    insides = [
        _printed(_COMMENT.sub("", found["inside"]).strip()) for found in _FENCE.finditer(text[-10 * MAX_CHARACTERS :])
    ]
    return next((inside for inside in reversed(insides) if inside), text)


def _printed(text: str) -> str:
    """What a program prints, if that is all that it does."""
    found = _PRINTED.fullmatch(text)
    return (found["value"] or found["inside"] or "").strip(AROUND) if found else text


def in_box(box: re.Match[str], most: int) -> str | None:
    """The inside of a box that BOX has found; None if it is not closed within ``most`` characters."""
    if box["bare"]:
        return box["bare"]
    text, start, depth = box.string, box.end(), 1
    for at in range(start, min(len(text), start + most)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[start:at]
    return None


def boxed(text: str, most: int) -> str | None:
    r"""The inside of the last ``\boxed{}``, None if there is none or it is not closed within ``most`` characters."""
    last = deque(BOX.finditer(text), maxlen=1)
    return in_box(last[0], most) if last else None


def plain(text: str) -> str:
    """An expression with the signs of a keyboard and nothing around it."""
    if len(text) > MAX_CHARACTERS:
        return text.strip()
    text = _printed(_EQUALS.sub(" =", _REMARK.sub("", text.strip(AROUND))))
    if quoted := _QUOTED.fullmatch(text):
        text = (quoted["inside"] or quoted["curly"] or "").strip(AROUND)
    while marked := _MARKED.fullmatch(text):
        text = marked[2].strip(AROUND)
    for opening, closing in (("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(opening) and text.endswith(closing):
            text = text[2:-2].strip(AROUND)
    if text.startswith("\\boxed{") and text.endswith("}"):
        text = text[7:-1]
    text = _LABEL.sub("", text, count=1) if _LABEL.match(text) else text
    text = _FRACTION.sub(r"((\1)/(\2))", text)
    for word, sign in WORDS.items():
        text = text.replace(word, sign)
    text = _TIMES.sub("*", text.translate(SIGNS)).strip(AROUND)
    return text[:-1].rstrip() if text.endswith((".", ";")) and not text.endswith("..") else text


def expression(text: str) -> str:
    """The side of an equation that says how its value is made, or the text itself, plain.

    Raises WrongEquation where the sides differ or the last is missing, UnfitExpression where one of several has no
    value.
    """
    tidied = plain(text)
    first, *others = [plain(side) for side in tidied.split("=")]
    sides = [first, *others] if first else others or [first]  # = 35 continues what was asked
    if len(sides) == 1 or not all(sides[:-1]):
        return (sides[0] if len(sides) == 1 else tidied) or text.strip()
    if not sides[-1]:
        raise WrongEquation("the last side of the equation is missing")
    if len(sides) > MAX_SIDES:
        raise UnfitExpression("too_large", f"{len(sides)} sides, at most {MAX_SIDES} are read")
    if len({evaluate(side) for side in sides}) > 1:
        raise WrongEquation("the sides of the equation differ")
    return next((side for side in sides if re.search(r"\d\s*\)*\s*[-+*/%]", side)), sides[0])
