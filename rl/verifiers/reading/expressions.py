"""Expressions as math-verify reads them from LaTeX, brought to one form, and whether two of them are the same."""

import re
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import And, Basic, FiniteSet, Float, Ge, Gt, I, Interval, Le, Lt, MatrixBase, Rational, Symbol, Union, exp
from sympy.core.relational import Relational

from rl.verifiers.reading.witness import UNBOUNDED, closed, differ, elements, rounds

READ = [LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]

_BASE = re.compile(r"[0-9][0-9A-F]*\s*_\s*(?:\{\s*([^{}]*?)\s*\}|(\w))")  # 101_2, 2A_{16}
_OR = re.compile(r"\\text\s*\{\s*or\s*\}|\\(?:lor|vee)(?![A-Za-z])")
_LETTERS = re.compile(r"(?<=[0-9}\s])([A-Za-z]+)\s*\Z")
_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])(?!\s*\^\s*\{?\s*-)")  # a function of one
_PLAIN = re.compile(  # as it is typed without LaTeX: pi, and 3 1/2, but no word of a text
    r"(?P<text>\\(?:text\w*|math[a-z]+|mbox|operatorname)\s*\{[^{}]*\})|(?<![A-Za-z\\])(?P<pi>pi)(?![A-Za-z])"
    r"|(?<![0-9A-Za-z.,/}^_])(?P<whole>[0-9]+)\s+(?P<part>[0-9]+)\s*/\s*(?P<of>[0-9]+)(?![0-9.])"
)
_CHOOSE = re.compile(r"\\[dt]?binom\s*([0-9])\s*([0-9])")  # which it reads with braces alone
_SIZED = re.compile(r"\\(?:left|right)(?![A-Za-z])")
_BLANK = re.compile(r"(?:\s|~|(?<!\\)\\[,;:! ]|\\q?quad(?![A-Za-z]))+")
_DEGREES = re.compile(
    r"(\\[dt]?frac\s*\{[^{}]*\}\s*\{[^{}]*\}|(?<![0-9.])[0-9]*\.?[0-9]+[A-Za-z]?|(?<![A-Za-z\\])[A-Za-z]|(?<!\})\{[^{}]*\}|\([^()]*\))"
    r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))"
)
_ROUNDED = re.compile(  # 7/12 \\approx 0.583\\text{ cm}
    r"(?P<exact>.+?)(?:\\approx(?![A-Za-z])|≈)(?:\s|~)*(?P<decimal>-?[0-9]{0,15}\.?[0-9]{1,15})"
    r"(?P<unit>(?:\s|~|\\[,;:! ])*(?:\\(?:text|mathrm)\s*\{[^{}]*\})?\s*\.?)",
    re.DOTALL,
)


def unrounded(latex: str) -> str:
    """The exact side of an expression that is said once more as a decimal; anything else as it is."""
    found = _ROUNDED.fullmatch(latex)
    exact = found and expression(found["exact"].rpartition("=")[2])
    return found["exact"] + found["unit"] if found and exact and rounds(exact[0], found["decimal"]) else latex


def expression(latex: str) -> list[Any]:
    """The expression as math-verify parses it, and as text; the text alone where it cannot, nothing of an empty one."""
    latex = _CHOOSE.sub(r"\\binom{\1}{\2}", _PLAIN.sub(_in_latex, latex))
    either, latex = bool(_OR.search(latex)), _OR.sub(r"\\text{ or }", latex)
    if _ANGLE.search(latex):  # else it passes over them
        latex = _DEGREES.sub(r"(\\frac{\1\\pi}{180})", latex)
    latex = _LETTERS.sub(r"{\1}", latex)  # else it drops many for units, t and ab among them
    # the box alone: of one that it cannot parse it would take a fraction that stands in it
    found: list[Any] = parse(
        rf"\boxed{{{latex}}}", extraction_config=READ, extraction_mode="first_match", parsing_timeout=None
    )
    return [union(found[0]), *found[1:]] if either and found else found


def _in_latex(found: re.Match[str]) -> str:
    if found["text"]:
        return found[0]
    return r"\pi " if found["pi"] else rf"{found['whole']}\frac{{{found['part']}}}{{{found['of']}}}"


def union(found: Any) -> Any:
    """Bounds of one name between which there is an "or" as the set that they say, anything else as it is."""
    bounds = found.args if isinstance(found, FiniteSet) else ()
    parts = [part for each in bounds for part in (each.args if isinstance(each, And) else (each,))]
    simple = all(
        isinstance(part, Relational)
        and part.rel_op in ("<", "<=", ">", ">=")
        and sorted(isinstance(side, Symbol) for side in part.args) == [False, True]
        and not any(side.free_symbols for side in part.args if not isinstance(side, Symbol))
        for part in parts
    )
    if not parts or not simple or len({name for part in parts for name in part.free_symbols}) > 1:
        return found
    return Union(*(each.as_set() for each in bounds))


def same(wanted: list[Any], stated: list[Any], interval: bool = False, imaginary: bool = False) -> bool:
    """Whether math-verify finds them equal, which passes over bases, and takes a decimal for what it is close to;
    ``interval`` says that (2,5) is one, ``imaginary`` that i is the square root of -1."""
    if bases(wanted) != bases(stated):
        return False
    interval = interval or any(is_interval(each) for each in wanted)
    pairs = [(exact(one, imaginary), exact(other, imaginary)) for one in wanted for other in stated]
    return any(
        verify(one, other, timeout_seconds=None, allow_set_relation_comp=interval)
        for one, other in pairs
        if not differ(one, other)
    )


def compact(latex: str) -> str:
    r"""The text that is compared: without \left, \right and the blanks that divide neither numbers nor words."""
    single = _BLANK.sub(" ", _SIZED.sub(" ", latex)).strip()
    return re.sub(r"(?<![0-9]) (?=[0-9])|(?<![A-Za-z]) (?=[A-Za-z])| (?![0-9A-Za-z])", "", single)


def is_imaginary(found: Any) -> bool:
    """Whether its one letter is i, and the imaginary unit, as in 2+3i or e^{i\\pi}, no index, as in i(i+1)."""
    parts = elements(found)
    unit = {name for part in parts for name in part.free_symbols}
    return {str(name) for name in unit} == {"i"} and all(
        part.has(exp) or not part.diff(name).has(*unit) for part in parts for name in unit
    )


def bases(found: list[Any]) -> list[str]:
    """The bases of its numerals that are not 10."""
    latex = next((each for each in found if isinstance(each, str)), "")
    return sorted(index for each in _BASE.finditer(latex) if (index := each[1] or each[2] or "") != "10")


def is_range(found: Any) -> bool:
    """Whether an expression is a range between bounds, and no list of numbers."""
    return isinstance(found, Basic) and (isinstance(found, (Interval, Union)) or bool(found.has(Gt, Ge, Lt, Le)))


def is_interval(found: Any) -> bool:
    """Whether an expression is an interval for sure: (2,5) may be a pair."""
    if not isinstance(found, Interval):
        return False
    return not (found.left_open and found.right_open and found.start.is_finite and found.end.is_finite)


def upwards(chain: Any) -> Any:
    """2 > x > -1 as -1 < x < 2; math-verify compares chains link by link."""
    links = [exact(link) for link in getattr(chain, "_unsorted_args", chain.args)]
    if all(isinstance(link, Relational) and link.rel_op in (">", ">=") for link in links):
        links = [link.reversed for link in reversed(links)]
    return chain.func(*links)  # math-verify's own kind of And, which keeps the order of its links


def exact(found: Any, imaginary: bool = False) -> Any:
    """With its decimals as the fractions that they are, long sums in closed form, chains of inequalities upwards, and i
    as the number, or as a letter like others: math-verify has a real one and another."""
    if isinstance(found, str):
        return compact(found)
    if isinstance(found, MatrixBase):
        return found.applyfunc(lambda each: exact(each, imaginary))
    if isinstance(found, And):
        return upwards(found)
    found = closed(found)
    if not isinstance(found, Basic):
        return found
    if imaginary and not found.has(Relational, Interval, *UNBOUNDED):  # of real numbers, or with i as an index
        found = found.xreplace({each: I for each in found.free_symbols if str(each) == "i"})
    found = found.xreplace({each: Symbol(each.name, real=True) for each in found.free_symbols if each.is_real is False})
    return found.xreplace({each: Rational(str(each)) for each in found.atoms(Float)})
