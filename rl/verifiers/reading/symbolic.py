r"""Verifier `math`: the last ``\boxed{}`` means the same as the target, by math-verify. `rl.verifiers.isolation` runs
it in a process that can be killed: the library's own time-out does not fire in the middle of long arithmetic.

How it reads names, sets, units and numerals is in docs/verifiers.md. What math-verify cannot parse is compared as text.
"""

import re
from typing import Any

from sympy import Basic, FiniteSet

from rl.verifiers.reading.bases import same_numeral
from rl.verifiers.reading.choices import choice, choices, letter, unbraced
from rl.verifiers.reading.expressions import expression, is_imaginary, is_interval, is_range, same, unrounded
from rl.verifiers.reading.notation import both_points, both_signs, held, opened, tidied
from rl.verifiers.reading.targets import ABOUT, BETWEEN, asked, counted, in_unit, is_worded, same_text
from rl.verifiers.reading.units import Unit, has_more, other_unit, parts, unit_of, without_text
from rl.verifiers.reading.wording import DOUBTS, RATIO, asks_for, asks_only_for, clock, names_variable
from rl.verifiers.reading.written import TEXT

_EQUALS = re.compile(r"(?<![<>!:])=|\\equiv\b")
_SIGNS = re.compile(r"[(\[{)\]}=]|\\equiv\b")
_INDEX = re.compile(r"(?<=[A-Za-z])_\s*(?:\{\s*\d+\s*\}|\d)\Z")
_ARGUMENT = (r"\^", r"\\log_", r"\\frac\s", r"\\[dt]frac\s", r"\\binom\s", r"\\[dt]binom\s")  # which one digit is
_SPACED = re.compile(
    "".join(rf"(?<!{before})" for before in _ARGUMENT) + r"\d(?:\s|~|\\[,;:! ]|\\q?quad\b)+\d(?![\d.]*\s*/)"
)  # 2\;3, which would be read as 5; 1 1/2 is one
_AMONG_WORDS = re.compile(r"(?<![A-Za-z0-9^{])[0-9]")  # 42\text{ and 43}, but no m2
_PRIME = re.compile(r"(?<=[0-9})\]])\s*(?:'|’|\^\s*\{?\s*\\prime)")  # of feet or arcs: math-verify passes over it
_ZEROS = re.compile(r"(?<![\d.,:])00+\s*[A-Za-z]")  # 00x, which would be read as a product
_RADIANS = re.compile(r"(?<![A-Za-z])rad(?:ians?)?(?![A-Za-z])")
_IN = re.compile(r"\A\s*[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_INTERVAL = re.compile(r"\binterval|\binequalit", re.IGNORECASE)  # in what is asked
_PAIR = re.compile(r"\bordered\b|\bcoordinates\b", re.IGNORECASE)  # in what is asked
_BETWEEN_VALUES = re.compile(r"(?:,(?:\s|~|\\ )*)?\\text\s*\{\s*(?:or|and)\s*\}|\\(?:lor|vee)\b|,")
_POWER = re.compile(  # f^{-1}(x) is a name, and so is f^\prime(x)
    r"\^(?:\s|\{|\\[,;:! ])*(?!-\s*1\s*\}?\s*\()[-+]?\s*"
    r"(?:\w|\\(?!(?:prime|circ|ast|star|perp|top)(?![A-Za-z]))[A-Za-z])"
)
_SINGLE = r"(?:[A-Za-z]|\\[A-Za-z]+)"
_NEGATIVE = re.compile(r"[({\s]*[-−][^-+−]*")
_ABSOLUTE = re.compile(r"\s*\|\s*[-−]?\s*(?:(?![wz])[a-z]|\\[a-z]+)\s*\|\s*")
_CONJUGATE = re.compile(
    rf"\s*(?:\\overline\s*(?:\{{\s*{_SINGLE}\s*\}}|{_SINGLE})|{_SINGLE}\s*\^\s*\{{?\s*\*\s*\}}?)\s*"
)
_BARS = re.compile(r"\\(?:left|right)\s*(?=\||\\[lr]?vert(?![A-Za-z]))|\\[lr]?vert(?![A-Za-z])")
_SIZE = re.compile(  # which may be asked for in words
    r"\bmagnitude|\bmodul(?:us|i)\b|\babsolute\b|\blength|\bnorm\b|\bdistance|\bsize\b|\bhow\s+many\b|\bnumber\s+of\b"
    r"|\bcardinal|\border\b|\bdeterminant|\bspeed\b",
    re.IGNORECASE,
)
_WITH_I = re.compile(r"(?<![A-Za-z\\])i(?![A-Za-z])")
_WORD = re.compile(r"(\\(?:text|textbf|textit|mathrm|mbox)\s*\{)?\s*([A-Za-z]{2,}(?:[ -][A-Za-z]+)*)\s*(?(1)\.?\s*\}|)")
_VERDICT = re.compile("yes|no|true|false", re.IGNORECASE)  # which are no products of letters without a text, either
_TO = re.compile(
    r"(?<=[0-9}])(?:\s|~|\\ )*(?:\\text\s*\{\s*(?:to|:)\s*\}|\bto\b)(?:\s|~|\\ )*(?=[0-9\\])"
)  # of a ratio
_COMPLEX = re.compile(r"\bcomplex\b|\bimaginary\b|\bi\s*\^\s*\{?2|\\sqrt\s*\{?\s*-\s*1", re.IGNORECASE)  # asked for
_LIST = re.compile(r"[^()\[\]{}=]+(?:,[^()\[\]{}=]+)+")
_UNIT = re.compile(  # behind a number
    rf"(?:(?<=[0-9}}])|(?P<pi>(?<=\\pi)))(?P<space>{BETWEEN}*)(?:(?:[cdkm]m|[km]g|m[lL]|ft|in|mi|yd|lbs?|oz|hrs?|min|mph|(?:km|mi|ft|m)/(?:hr?|s))"
    r"|(?P<letter>[smghlL])|(?P<word>(?:(?:sq|square|cubic)\.?\s+)?(?:[A-Za-z]{3,}s|feet|foot|inch|unit|percent|people)))"
    rf"(?:\s*\^\s*\{{?[23]\}}?|[²³])?{BETWEEN}*\Z"
)
_SPACES = re.compile(rf"(?<!\\){BETWEEN}+(?=[A-Za-z=\\])|(?<=[=,]){BETWEEN}+")  # which divide no numbers
_LABEL_OF_VALUE = re.compile(
    r"\s*(?:\\[A-Za-z]+\s*)?(?:[A-Za-z]|[A-Z]+|\{[A-Z]+\})?(?:_\s*(?:\{[^{}]*\}|\w))?'?(?:\s*\([^()]*\))?\s*"
)
_NAMES = re.compile(
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi"
    r"|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell|angle|triangle|overline|vec|measuredangle|widehat|hat|det|dim|Pr"
    r"|max|min|lvert|rvert|lVert|rVert)(?![A-Za-z])|\\\|"
)


def unitless(latex: str, target: bool = False, prompt: str = "") -> str:
    """A number without its unit. A letter that touches the number of a target, or that the problem names, is a
    variable."""
    found = _UNIT.search(latex)
    if found is None or any(kind.search(found[0]) for kind in DOUBTS):
        return latex
    if target and (found["word"] or (found["letter"] and not found["space"])):
        return latex
    if found["letter"] and (found["pi"] is not None or names_variable(prompt, found["letter"])):
        return latex
    return latex[: found.start()]


def measure(latex: str, target: bool = False, prompt: str = "") -> Unit:
    """The unit of an expression, in a text or as `unitless` takes it off."""
    plain = tidied(latex)
    return unit_of(latex) or parts(plain[len(unitless(plain, target, prompt)) :])


def doubts(latex: str) -> set[str]:
    """Words of an expression that take its value back, or make another one of it, and numbers among words."""
    words = {text.strip().lower() for text in TEXT.findall(latex)}
    return {each for each in words if any(kind.search(each) for kind in (*DOUBTS, _AMONG_WORDS))}


def has_variable(latex: str) -> bool:
    """Whether an expression has letters that are no words of a text."""
    return bool(re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", TEXT.sub("", latex))))


def _is_of_names(latex: str) -> bool:
    r"""As `has_variable`, Greek ones too: \cos\theta."""
    return has_variable(_NAMES.sub(" x ", latex))


def is_loose(stated: str, wanted: str) -> bool:
    """Whether an answer has several numbers side by side, or one with more to come, where the target has not; or
    radians where the target has degrees; or anything behind a unit."""
    if has_more(stated) or ("\\circ" in wanted and _RADIANS.search(stated)):
        return True
    return any(kind.search(stated) and not kind.search(wanted) for kind in (_SPACED, ABOUT, _PRIME, _ZEROS))


def is_relation(wanted: str, prompt: str) -> bool:
    """Whether a target is an equation of more than a name and its value: x+y=2, and not x=2, P(A)=2 or AB=2."""
    left, *right = sides(wanted)
    return bool(right) and not _LABEL_OF_VALUE.fullmatch(left) and not asks_only_for(prompt, left)


def is_name(latex: str) -> bool:
    r"""Whether an expression is a name, as x, P(A), AB, \theta or a+b are, and no value or equation: 3, \sqrt4."""
    latex = re.sub(r"\\left|\\right", "", latex)
    if re.fullmatch(r"\s*\((?:\s*[A-Za-z]\s*,)*\s*[A-Za-z]\s*\)\s*", _NAMES.sub(" x ", latex)):
        return True  # (x, y)
    latex = re.sub(r"\([^()]*\)|[_^]\s*(?:\{[^{}]*\}|\w)", "", latex)  # arguments, indices and powers
    latex = re.sub(r"\\(?:text|mathrm|mathbf|mathbb|mathcal|operatorname)\s*\{([^{}]*)\}", r" \1 ", latex)
    letters = _NAMES.sub(" x ", latex)
    return bool(re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", letters))) and not re.search(r"[0-9]|\\", letters)


def is_altered(name: str, wanted: str, prompt: str) -> bool:
    """Whether a name is one to a power, a negative, an absolute value or, where the target is a complex number, a
    conjugate, which the problem does not ask for."""
    bare, asked_for = (_BARS.sub(lambda bar: "|" if "vert" in bar[0] else "", latex) for latex in (name, prompt))
    altered = (
        _POWER.search(bare)
        or _NEGATIVE.fullmatch(re.sub(r"\([^()]*\)", "x", bare))
        or (_ABSOLUTE.fullmatch(bare) and not _SIZE.search(prompt))
        or (_CONJUGATE.fullmatch(bare) and _WITH_I.search(wanted))
    )
    return bool(altered) and not asks_for(asked_for, bare)


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
    """The one value of an answer that may be an equation; None where there is more than one, or none. What is made of
    a name counts (x^2 = 5 is not 5), but where it is asked for, or stands behind a plain name (V = s^3)."""
    stated = _SPACES.sub(" ", stated)
    pieces = _BETWEEN_VALUES.split(stated)
    named = [piece.split("=") for piece in pieces]
    if len(pieces) > 1 and all(len(each) == 2 for each in named):
        names, those = [each[0].strip() for each in named], ",".join(each[1].strip() for each in named)
        if brackets(wanted) == "(" and not interval:  # x=3,y=4; in another order it is not known which comes first
            in_order = all(re.fullmatch("[A-Za-z]", name) for name in names) and names == sorted(set(names))
            return f"({those})" if in_order else None
        if len({_INDEX.sub("", name) for name in names}) == 1 and not is_altered(names[0], wanted, prompt):
            return those  # x=1 or x=2, x_1=1,x_2=2
    claims = sides(stated)
    if len(claims) == 1 or len(claims) == len(sides(wanted)):
        return stated
    passed = [claim for claim in claims if is_name(claim) or (_is_of_names(claim) and asks_only_for(prompt, claim))]
    passed = [] if all(is_altered(name, wanted, prompt) for name in passed) else passed
    values = [claim for claim in claims if claim not in passed] or claims[-1:]  # x = e^2
    seen = [expression(claim) for claim in values]
    if not values or not all(seen) or any(map(has_more, values)) or not all(same(each, seen[-1]) for each in seen[:-1]):
        return None
    return values[-1]


def brackets(latex: str) -> str:
    """The brackets around an expression: { of a set, ( of a pair or an open interval, else none."""
    latex = re.sub(r"\\left|\\right|\s", "", latex)
    if latex.startswith("\\{") and latex.endswith("\\}"):
        return "{"
    return "(" if re.fullmatch(r"\([^()]*,[^()]*\)", latex) else ""


def unanswered(completion: str) -> tuple[float, str, dict[str, float]]:
    """The verdict on a completion without a box."""
    return 0.0, "no_answer" if completion.strip() else "empty", {"format": 0.0, "right": 0.0}


def judged(right: bool) -> tuple[float, str, dict[str, float]]:
    """The verdict on an answer that was read."""
    return float(right), "right" if right else "wrong_value", {"format": 1.0, "right": float(right)}


def reward(problem: Any, completion: str) -> tuple[float, str, dict[str, float]]:
    target = both_signs(opened(asked(problem.target)))
    wanted, unit, measured = tidied(target), "", measure(target, True, problem.prompt)
    if count := counted(wanted):
        wanted, unit = count
        measured = parts(unit)
    if is_worded(wanted):
        answer = held(completion)
        if answer is None:
            return unanswered(completion)
        return judged(same_text(wanted, tidied(both_signs(opened(answer)))))
    interval = bool(_IN.match(wanted) or (_INTERVAL.search(problem.prompt) and not _PAIR.search(problem.prompt)))
    wanted = unitless(_IN.sub("", wanted), target=True)
    plain = without_text(wanted)
    gold = expression(both_points(plain))
    if not gold:
        raise ValueError(f"the target {problem.target[:80]!r} is no mathematics that math-verify reads")
    letters = {str(name) for each in gold if isinstance(each, Basic) for name in each.free_symbols}
    imaginary = "i" not in letters or bool(_COMPLEX.search(problem.prompt)) or is_imaginary(gold[0])
    interval = interval or any(map(is_interval, gold))
    answer = held(completion)
    if answer is None:
        return unanswered(completion)
    if re.fullmatch("[A-J]", letter(wanted)) and (option := choice(answer)) is not None:
        return judged(option == letter(wanted))
    if (several := choices(wanted)) is not None:
        return judged(choices(unbraced(opened(answer))) == several)
    if (alike := same_numeral(wanted, tidied(opened(answer)), problem.prompt)) is not None:
        return judged(alike)
    answer = both_signs(unrounded(opened(answer)))
    if re.search(r"[0-9]\s*:\s*[0-9]", wanted) and (RATIO.search(problem.prompt) or not clock(wanted)):
        answer = _TO.sub(":", answer)
    stated = value(_IN.sub("", tidied(answer)), wanted, problem.prompt, interval)
    said = measure(answer, prompt=problem.prompt) if unit or not has_variable(wanted) else unit_of(answer)
    if unit and stated is not None:
        bare = in_unit(tidied(stated), unit)
        said = said if bare == tidied(stated) else {}
        stated = bare
    if stated is not None and len(sides(stated)) == 1 and is_relation(wanted, problem.prompt):
        return judged(False)
    word = None if stated is None else same_word(wanted, tidied(stated))
    if word is not None:
        return judged(word)
    if stated is None or doubts(tidied(answer)) - doubts(wanted) or is_loose(stated, wanted):
        return 0.0, "ambiguous", {"format": 0.0, "right": 0.0}
    stated = tidied(stated)
    if (time := clock(wanted)) and not RATIO.search(problem.prompt):
        return judged((clock(stated) or ())[: 3 if time[2] else 2] == time[: 3 if time[2] else 2])
    if other_unit(measured, said):
        return judged(False)
    stated = without_text(stated)
    # a list has no order; in brackets it may be a pair, and then it has one
    if brackets(stated) == "(" and _LIST.fullmatch(plain):
        gold = expression(both_points(f"({plain})"))
    elif brackets(plain) == "(" and not interval and _LIST.fullmatch(stated):
        stated = f"({stated})"
    stated = stated if unit or has_variable(wanted) else unitless(stated, prompt=problem.prompt)
    found = expression(both_points(stated))
    if not found:
        return 0.0, "unparsable", {"format": 0.0, "right": 0.0}
    kinds = {brackets(plain), brackets(stated)}
    listed = isinstance(found[0], FiniteSet) and is_range(gold[0]) and (interval or brackets(plain) != "(")
    one = isinstance(found[0], FiniteSet) and not isinstance(gold[0], FiniteSet) and brackets(stated) != "{"  # 6,6,6
    unlike = one or kinds == {"{", "("} or listed or has_other_case(wanted, stated)
    return judged(not unlike and same(gold, found, interval, imaginary))
