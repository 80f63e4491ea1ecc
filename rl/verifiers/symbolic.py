r"""Verifier `math`: the last ``\boxed{}`` means the same as the target, by math-verify. `rl.verifiers.isolation` runs
it in a process that can be killed: the library's own time-out does not fire in the middle of long arithmetic.

How it reads names, sets, units and numerals is in docs/verifiers.md. What math-verify cannot parse is compared as text.
"""

import re
from fractions import Fraction
from typing import Any

from sympy import Basic, FiniteSet

from rl.verifiers.expressions import expression, is_imaginary, is_interval, is_range, same
from rl.verifiers.targets import MAX_CHARACTERS, asked, counted, in_unit
from rl.verifiers.wording import DOUBTS, RATIO, asks_for, asks_only_for, clock, names_variable
from rl.verifiers.written import TEXT, boxed

_EQUALS = re.compile(r"(?<![<>!:])=|\\equiv\b")
_SIGNS = re.compile(r"[(\[{)\]}=]|\\equiv\b")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")
_INDEX = re.compile(r"(?<=[A-Za-z])_\s*(?:\{\s*\d+\s*\}|\d)\Z")
_LONG = re.compile(r"(?<![\d.])([0-9]*)\.([0-9]{15,})(?!\d)")  # more than a float holds
_LABEL = re.compile(
    r"\s*\\(?:text|textbf|mathrm|mbox)\s*\{\s*(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*[:=]?\s*\}\s*[:=]?",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\\[,;! ]|,\\!|\{,\}|~)\d{3})+(?!\d)")
_ARGUMENT = (r"\^", r"\\log_", r"\\frac\s", r"\\[dt]frac\s", r"\\binom\s", r"\\[dt]binom\s")  # which one digit is
_SPACED = re.compile(
    "".join(rf"(?<!{before})" for before in _ARGUMENT) + r"\d(?:\s|~|\\[,;:! ]|\\q?quad\b)+\d(?![\d.]*\s*/)"
)  # 2\;3, which would be read as 5; 1 1/2 is one
_SEVERAL = re.compile(  # 6\text{ hours and }5\text{ minutes}, and no list
    r"[0-9}]\s*\\text\s*\{(?!\s*(?:and|or)\s*\})[^{}]*\}(?:\s|~|\\[,;:! ])*[0-9]"
)
_PRIME = re.compile(r"(?<=[0-9})\]])\s*(?:'|’|\^\s*\{?\s*\\prime)")  # of feet or arcs: math-verify passes over it
_ZEROS = re.compile(r"(?<![\d.,:])00+\s*[A-Za-z]")  # 00x, which would be read as a product
_DEGREES = re.compile(r"°|\\degree\b")
_MONEY = re.compile(r"\\\$|(?<![0-9])[€£]|[€£](?!\s*[0-9])|\\pounds(?![A-Za-z])")
_STYLE = re.compile(  # which changes how it looks
    r"\\(?:bf|rm|displaystyle|textstyle|Large|large|boldsymbol|mathbf|bm|underline)(?![A-Za-z])|\\color\s*\{[^{}]*\}"
)
_UPRIGHT = re.compile(  # the imaginary unit, or those of space, which math-verify takes for one of measure and drops
    r"\\(?:mathrm|textrm|text|mathit|operatorname)\s*(?:\{(?:\s|~)*([ijk])\s*\}|\s([ijk])(?![A-Za-z]))"
)
_BIG = re.compile(r"\\big(cup|cap)(?![A-Za-z])(?!\s*[_^])")  # between two sets, and not of many by an index
_AROUND = re.compile(r"\A(?:\s|~|\\[,;:! ]|\\q?quad\b|=)+|(?:\s|~|\\[,;:! ]|\\q?quad\b|\\\Z)+\Z")
_EMPTY = re.compile(
    r"\\varnothing\b|∅|\A\s*(?:\\(?:text|textbf|mathrm|mbox)\s*\{\s*)?(?:(?:the\s+)?empty\s+set"
    r"|(?:there\s+(?:is|are)\s+)?no\s+(?:real\s+|such\s+)?(?:solutions?|roots?))\s*\.?\s*\}?\s*\Z",
    re.IGNORECASE,
)
_REALS = re.compile(
    r"\A\s*\\(?:text|textbf|mathrm|mbox)\s*\{\s*(?:(?:the\s+set\s+of\s+)?all\s+)?real\s+numbers?\s*\.?\s*\}\s*\Z",
    re.IGNORECASE,
)
_RADIANS = re.compile(r"(?<![A-Za-z])rad(?:ians?)?(?![A-Za-z])")
_IN = re.compile(r"\A\s*[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_INTERVAL = re.compile(r"\binterval|\binequalit", re.IGNORECASE)  # in what is asked
_PAIR = re.compile(r"\bordered\b|\bcoordinates\b", re.IGNORECASE)  # in what is asked
_POWER = re.compile(r"\^\s*\{?\s*(?!-\s*1\s*\}?\s*\()[-+]?\s*(?:[0-9A-Za-z]|\\[dt]?frac)")  # f^{-1}(x) is a name
_WORD = re.compile(r"(\\(?:text|textbf|textit|mathrm|mbox)\s*\{)?\s*([A-Za-z]{2,}(?:[ -][A-Za-z]+)*)\s*(?(1)\.?\s*\}|)")
_VERDICT = re.compile("yes|no|true|false", re.IGNORECASE)  # which are no products of letters without a text, either
_OPTION = re.compile(r"\A\s*\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{\s*\([A-E]\)\s*\}(?:\s|~|\\[,;:! ])*(?=\S)")
_NATURAL = re.compile(r"\\log\s*_\s*(?:e(?![A-Za-z])|\{\s*e\s*\})")
_COMPLEX = re.compile(r"\bcomplex\b|\bimaginary\b|\bi\s*\^\s*\{?2|\\sqrt\s*\{?\s*-\s*1", re.IGNORECASE)  # asked for
_LIST = re.compile(r"[^()\[\]{}=]+(?:,[^()\[\]{}=]+)+")
_BETWEEN = r"(?:\s|~|\\[,;:! ]|\\q?quad\b)"
_UNIT = re.compile(  # behind a number
    rf"(?<=[0-9}}])(?P<space>{_BETWEEN}*)(?:(?:[cdkm]m|[km]g|m[lL]|ft|in|mi|yd|lbs?|oz|hrs?|min|mph|(?:km|mi|ft|m)/(?:hr?|s))"
    r"|(?P<letter>[smghlL])|(?P<word>(?:(?:sq|square|cubic)\.?\s+)?(?:[A-Za-z]{3,}s|feet|foot|inch|unit|percent|people)))"
    rf"(?:\s*\^\s*\{{?[23]\}}?|[²³])?{_BETWEEN}*\Z"
)
_SPACES = re.compile(rf"(?<!\\){_BETWEEN}+(?=[A-Za-z=\\])|(?<=[=,]){_BETWEEN}+")  # which divide no numbers
_ABOUT = re.compile(r"\\(?:approx|sim|simeq|l?dots|cdots)\b|\.\.\.|…|≈")
_NAMES = re.compile(
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi"
    r"|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell|angle|triangle|overline|vec|measuredangle|widehat|hat|det|dim|Pr"
    r"|max|min|lvert|rvert|lVert|rVert)(?![A-Za-z])|\\\|"
)


def tidied(latex: str) -> str:
    """The expression without what changes no value: a label, dollars around it, a trailing dot, a percent sign,
    separators of thousands; decimals that repeat, or are longer than a float, as fractions."""
    latex = _LABEL.sub("", latex, count=1) if _LABEL.match(latex) else latex
    latex = _NATURAL.sub(r"\\ln ", _OPTION.sub("", latex))
    latex = _BIG.sub(r"\\\1 ", _UPRIGHT.sub(r" \1\2", latex))
    latex = _STYLE.sub("", _DEGREES.sub(r"^\\circ", _MONEY.sub("", latex))).strip().strip("$")
    latex = _AROUND.sub("", latex)
    while (
        latex.startswith("{")
        and (held := boxed(rf"\boxed{latex}", MAX_CHARACTERS)) is not None
        and latex == f"{{{held}}}"
    ):
        latex = _AROUND.sub("", held)
    latex = _REALS.sub(r"\\mathbb{R}", _EMPTY.sub(r"\\emptyset", latex))
    latex = re.sub(r"(?<![.\s])\.\s*$|(?<!\\)[,;]\s*$|\\\\\s*$", "", latex)
    latex = re.sub(r"\s*(?:\\?%|\\text\{\s*\\?%\s*\})\s*$", "", latex)
    latex = _THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), latex)
    return _LONG.sub(_fraction, _REPEATING.sub(_fraction, latex))


def _fraction(decimal: re.Match[str]) -> str:
    whole, some, *more = decimal.groups("")
    period = "".join(more)
    value = Fraction(int(f"{whole}{some}" or 0), 10 ** len(some))
    if period:
        value += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(some))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def unitless(latex: str, target: bool = False, prompt: str = "") -> str:
    """A number without its unit. A letter that touches the number of a target, or that the problem names, is a
    variable."""
    found = _UNIT.search(latex)
    if found is None or any(kind.search(found[0]) for kind in DOUBTS):
        return latex
    if target and (found["word"] or (found["letter"] and not found["space"])):
        return latex
    if found["letter"] and names_variable(prompt, found["letter"]):
        return latex
    return latex[: found.start()]


def doubts(latex: str) -> set[str]:
    """Words of an expression that take its value back, or make another one of it."""
    words = {text.strip().lower() for text in TEXT.findall(latex)}
    return {each for each in words if any(kind.search(each) for kind in DOUBTS)}


def has_variable(latex: str) -> bool:
    """Whether an expression has letters that are no words of a text."""
    return bool(re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", TEXT.sub("", latex))))


def is_loose(stated: str, wanted: str) -> bool:
    """Whether an answer has several numbers side by side, or one with more to come, where the target has not; or
    radians where the target has degrees."""
    if "\\circ" in wanted and _RADIANS.search(stated):
        return True
    return any(kind.search(stated) and not kind.search(wanted) for kind in (_SPACED, _ABOUT, _SEVERAL, _PRIME, _ZEROS))


def is_name(latex: str) -> bool:
    r"""Whether an expression is a name, as x, P(A), AB, \theta or a+b are, and no value or equation: 3, \sqrt4."""
    latex = re.sub(r"\\left|\\right", "", latex)
    if re.fullmatch(r"\s*\((?:\s*[A-Za-z]\s*,)*\s*[A-Za-z]\s*\)\s*", latex):
        return True  # (x, y)
    latex = re.sub(r"\([^()]*\)|[_^]\s*(?:\{[^{}]*\}|\w)", "", latex)  # arguments, indices and powers
    latex = re.sub(r"\\(?:text|mathrm|mathbf|mathbb|mathcal|operatorname)\s*\{([^{}]*)\}", r" \1 ", latex)
    letters = _NAMES.sub(" x ", latex)
    return bool(re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", letters))) and not re.search(r"[0-9]|\\", letters)


def is_power(name: str, prompt: str) -> bool:
    """Whether a name is one to a power, which the problem does not ask for."""
    return bool(_POWER.search(name)) and not asks_for(prompt, name)


def same_word(wanted: str, stated: str) -> bool | None:
    """Whether both are one word or letter; None where that is for math-verify to say. Outside of a text it takes a word
    for a product of its letters, and has no capitals: ABC is CBA and abc there."""
    ours, theirs = _WORD.fullmatch(wanted), _WORD.fullmatch(stated)
    if ours and theirs and (ours[1] or theirs[1] or _VERDICT.fullmatch(ours[2])):
        return ours[2].lower() == theirs[2].lower() or (False if _VERDICT.fullmatch(ours[2]) else None)
    if re.fullmatch("[A-Z]{2,}", wanted):
        return None if re.sub(r"\\[A-Za-z]+|[^A-Za-z]", "", TEXT.sub("", stated)) == wanted else False
    mine, other = letter(wanted), letter(stated)
    if mine == other or mine.lower() != other.lower():
        return None
    return None if mine in "ABCDE" or "(" in wanted else False  # of a choice b is B


def letter(latex: str) -> str:
    r"""The letter that an expression is, in brackets or \text, too; empty where it is more than one."""
    bare = re.sub(r"\\(?:text|textbf|textit|mathrm|mbox)(?![A-Za-z])|[\s(){}.]", "", latex)
    return bare if re.fullmatch("[A-Za-z]", bare) else ""


def has_other_case(wanted: str, stated: str) -> bool:
    """Whether a letter that stands alone is a capital in one of them only, which math-verify passes over: 2k, 2K."""
    ours, theirs = (
        set(re.findall(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])", re.sub(r"\\[A-Za-z]+", " ", TEXT.sub(" ", latex))))
        for latex in (wanted, stated)
    )
    return any(each.swapcase() in theirs for each in ours - theirs) and not letter(wanted)


def sides(latex: str) -> list[str]:
    """The sides of an equation; equals signs within brackets do not divide."""
    found, start, depth = [], 0, 0
    for sign in _SIGNS.finditer(latex):
        depth += (sign[0] in "([{") - (sign[0] in ")]}")
        if depth == 0 and _EQUALS.match(latex, sign.start()):
            found.append(latex[start : sign.start()])
            start = sign.end()
    return [*found, latex[start:]]


def value(stated: str, wanted: str, prompt: str, interval: bool) -> str | None:
    """The one value of an answer that may be an equation; None where there is more than one, or none. The power of a
    name counts (x^2 = 5 is not 5), but where it is asked for, or stands behind a plain name (V = s^3)."""
    stated = _SPACES.sub(" ", stated)
    pieces = re.split(r",|\\text\s*\{\s*(?:or|and)\s*\}|\\(?:lor|vee)\b", stated)
    named = [piece.split("=") for piece in pieces]
    if len(pieces) > 1 and all(len(each) == 2 for each in named):
        names, those = [each[0].strip() for each in named], ",".join(each[1].strip() for each in named)
        if brackets(wanted) == "(" and not interval:  # x=3,y=4; in another order it is not known which comes first
            in_order = all(re.fullmatch("[A-Za-z]", name) for name in names) and names == sorted(set(names))
            return f"({those})" if in_order else None
        if len({_INDEX.sub("", name) for name in names}) == 1 and not is_power(names[0], prompt):
            return those  # x=1 or x=2, x_1=1,x_2=2
    claims = sides(stated)
    if len(claims) == 1 or len(claims) == len(sides(wanted)):
        return stated
    passed = [claim for claim in claims if is_name(claim) or (has_variable(claim) and asks_only_for(prompt, claim))]
    passed = [] if all(is_power(name, prompt) for name in passed) else passed
    values = [claim for claim in claims if claim not in passed] or claims[-1:]  # x = e^2
    seen = [expression(claim) for claim in values]
    if not values or not all(seen) or not all(same(each, seen[-1]) for each in seen[:-1]):
        return None
    return values[-1]


def brackets(latex: str) -> str:
    """The brackets around an expression: { of a set, ( of a pair or an open interval, else none."""
    latex = re.sub(r"\\left|\\right|\s", "", latex)
    if latex.startswith("\\{") and latex.endswith("\\}"):
        return "{"
    return "(" if re.fullmatch(r"\([^()]*,[^()]*\)", latex) else ""


def reward(problem: Any, completion: str) -> tuple[float, str, dict[str, float]]:
    wanted, unit = tidied(asked(problem.target)), ""
    if count := counted(wanted):
        wanted, unit = count
    interval = bool(_IN.match(wanted) or (_INTERVAL.search(problem.prompt) and not _PAIR.search(problem.prompt)))
    wanted = unitless(_IN.sub("", wanted), target=True)
    gold = expression(wanted)
    if not gold:
        raise ValueError(f"the target {problem.target[:80]!r} is no mathematics that math-verify reads")
    letters = {str(name) for each in gold if isinstance(each, Basic) for name in each.free_symbols}
    imaginary = "i" not in letters or bool(_COMPLEX.search(problem.prompt)) or is_imaginary(gold[0])
    interval = interval or any(map(is_interval, gold))
    answer = boxed(completion, MAX_CHARACTERS)
    if answer is None:
        return 0.0, "no_answer" if completion.strip() else "empty", {"format": 0.0, "right": 0.0}
    stated = value(_IN.sub("", tidied(answer)), wanted, problem.prompt, interval)
    if unit and stated is not None:
        stated = in_unit(tidied(stated), unit)
    word = None if stated is None else same_word(wanted, tidied(stated))
    if word is not None:
        return float(word), "right" if word else "wrong_value", {"format": 1.0, "right": float(word)}
    if stated is None or doubts(answer) - doubts(wanted) or is_loose(stated, wanted):
        return 0.0, "ambiguous", {"format": 0.0, "right": 0.0}
    stated = tidied(stated)
    if (time := clock(wanted)) and not RATIO.search(problem.prompt):
        right = float((clock(stated) or ())[: 3 if time[2] else 2] == time[: 3 if time[2] else 2])
        return right, "right" if right else "wrong_value", {"format": 1.0, "right": right}
    # a list has no order; in brackets it may be a pair, and then it has one
    if brackets(stated) == "(" and _LIST.fullmatch(wanted):
        gold = expression(f"({wanted})")
    elif brackets(wanted) == "(" and not interval and _LIST.fullmatch(stated):
        stated = f"({stated})"
    found = expression(stated if unit or has_variable(wanted) else unitless(stated, prompt=problem.prompt))
    if not found:
        return 0.0, "unparsable", {"format": 0.0, "right": 0.0}
    kinds = {brackets(wanted), brackets(stated)}
    listed = isinstance(found[0], FiniteSet) and is_range(gold[0]) and (interval or brackets(wanted) != "(")
    one = isinstance(found[0], FiniteSet) and not isinstance(gold[0], FiniteSet) and brackets(stated) != "{"  # 6,6,6
    unlike = one or kinds == {"{", "("} or listed or has_other_case(wanted, stated)
    right = float(not unlike and same(gold, found, interval, imaginary))
    return right, "right" if right else "wrong_value", {"format": 1.0, "right": right}
