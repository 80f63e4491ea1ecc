"""One value in the notations of LaTeX: what changes none, brought to the form that math-verify reads."""

import re
from collections.abc import Iterator
from fractions import Fraction

from rl.verifiers.reading.targets import MAX_CHARACTERS
from rl.verifiers.reading.units import gathered, in_line
from rl.verifiers.reading.written import ROMAN, behind_thinking, boxed

_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")
_LONG = re.compile(r"(?<![\d.])([0-9]*)\.([0-9]{15,})(?!\d)")  # more than a float holds
_LABEL = re.compile(
    r"\s*\\(?:text|textbf|mathrm|mbox)\s*\{\s*(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*[:=]?\s*\}\s*[:=]?",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\\[,;! ]|,\\!|\{,\}|~)\d{3})+(?!\d)")
_DEGREES = re.compile(r"°|\\degree\b")
_CELSIUS = re.compile(r"((?:\\circ\s*\}?|°|\\degree)\s*)([CF])(?![A-Za-z])")
_MONEY = re.compile(r"\\\$|(?<![0-9])[€£]|[€£](?!\s*[0-9])|\\pounds(?![A-Za-z])|¢")
_STYLE = re.compile(  # which changes how it looks
    r"\\(?:bf|rm|displaystyle|textstyle|Large|large|boldsymbol|mathbf|bm|underline)(?![A-Za-z])|\\(?:text)?color\s*\{[^{}]*\}"
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
_OPTION = re.compile(  # of a choice, before its value
    r"\A\s*(?:\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{\s*\(?[A-J]\)\s*\}(?:\s|~|\\[,;:! ])*(?=\S)"
    r"|\(?(?:[A-J]|\\text\s*\{[A-J]\})\)(?:\s|~|\\[,;:! ])+(?=-?\s*(?:[0-9.]|\\[dt]?frac|\\sqrt|\\\$)))"
)
_NATURAL = re.compile(r"\\log\s*_\s*(?:e(?![A-Za-z])|\{\s*e\s*\})")

_ROWS = re.compile(r"\\\\\s*\[\s*-?[0-9.]+\s*(?:pt|em|ex|mm|cm|in)\s*\]")  # and the space between two of a matrix
_TAKES = re.compile(r"\\(?P<frac>[dtc]?frac)(?![A-Za-z])|\\sqrt(?![A-Za-z])(?:\s*\[[^\[\]]*\])?")
_ROOTED = re.compile(r"\s*([0-9]+)(?!\.?[0-9])")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_SIGN = r"\\(?:pm|mp)(?![A-Za-z])"
_DEPTH = re.compile(rf"\\?[{{(\[]|\\?[}})\]]|,|{_SIGN}")
_SET = re.compile(r"(\s*(?:\\left\s*)?\\\{)((?:(?!\\[{}]).)*?)((?:\\right\s*)?\\\}\s*)", re.DOTALL)
_POINT = re.compile(r"\s*(?:\\left\s*)?\(.*\)\s*", re.DOTALL)

_AS_TEXT = r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{"
_NUMERAL = r"-?\s*(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:/[0-9]+)?"
_WRITTEN = re.compile(  # one number with its label and its unit, all in a text
    rf"\A(?:\s|~|\$)*{_AS_TEXT}\s*(?P<label>(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*[:=]?\s|\([A-E]\)\s)?\s*"
    rf"(?:\\?\$\s*)?(?P<number>{_NUMERAL})\s*(?P<unit>[A-Za-z]{{2}}[^{{}}]*)?[.,]?\s*\}}(?:\s|~|\$)*\.?\Z",
    re.IGNORECASE,
)
_UPRIGHT_NUMERAL = re.compile(rf"{_AS_TEXT}\s*({_NUMERAL})\s*\}}")
_BUILDER = re.compile(  # {x | x > 3}
    r"\\\{\s*(?P<name>[A-Za-z])\s*(?:\\in\s*\\mathbb\s*(?:\{\s*R\s*\}|\s+R))?(?:\s|\\[,;:! ])*"
    r"(?:\\mid(?![A-Za-z])|:|\|)"
    r"(?P<condition>[^,]*(?:[<>]|\\[lg](?:t|e|eq|eqslant)(?![A-Za-z]))[^,]*)\\\}"
)


def held(completion: str) -> str | None:
    r"""The inside of the last ``\boxed{}`` behind the thinking, with one command for all texts."""
    answer = boxed(behind_thinking(completion), MAX_CHARACTERS)
    return None if answer is None else ROMAN.sub(r"\\text", answer)


def opened(latex: str) -> str:
    r"""A number that is written within a text, out of it: \text{Answer: 3 apples} as \text{Answer: }3\text{ apples};
    and one unit in one text behind all numbers: 3\text{ cm},4\text{ cm} as 3,4\text{ cm}."""
    latex = ROMAN.sub(r"\\text", latex)
    if found := _WRITTEN.fullmatch(latex):
        label, unit = (rf"\text{{ {part.strip()} }}" if part else "" for part in (found["label"], found["unit"]))
        return f"{label}{found['number']}{unit}"
    return gathered(in_line(_CELSIUS.sub(r"\1\\text{\2}", _UPRIGHT_NUMERAL.sub(r" \1 ", latex))))


def _bounds(latex: str) -> str:
    """The bounds that a set of real numbers is built of; anything else as it is."""
    found = _BUILDER.fullmatch(re.sub(r"\\(?:left|right|middle)(?![A-Za-z])", "", latex))
    if found is None:
        return latex
    letters = re.sub(r"\\text\s*\{\s*(?:or|and)\s*\}|\\[A-Za-z]+", "", found["condition"])
    return found["condition"].strip() if set(re.findall("[A-Za-z]", letters)) == {found["name"]} else latex


def tidied(latex: str) -> str:
    """The expression without what changes no value: a label, dollars around it, a trailing dot, a percent sign,
    separators of thousands; decimals that repeat, or are longer than a float, as fractions."""
    latex = _LABEL.sub("", latex, count=1) if _LABEL.match(latex) else latex
    latex = _ROWS.sub(r"\\\\ ", _NATURAL.sub(r"\\ln ", _OPTION.sub("", latex)))
    latex = _BIG.sub(r"\\\1 ", _UPRIGHT.sub(r" \1\2", latex))
    latex = _STYLE.sub("", _DEGREES.sub(r"^\\circ", _MONEY.sub("", latex))).strip().strip("$")
    latex = _AROUND.sub("", latex)
    while (
        latex.startswith("{")
        and (inside := boxed(rf"\boxed{latex}", MAX_CHARACTERS)) is not None
        and latex == f"{{{inside}}}"
    ):
        latex = _AROUND.sub("", inside)
    latex = _REALS.sub(r"\\mathbb{R}", _EMPTY.sub(r"\\emptyset", latex))
    latex = re.sub(r"(?<![.\s])\.\s*$|(?<!\\)[,;]\s*$|\\\\\s*$", "", latex)
    latex = re.sub(r"\s*(?:\\?%|\\text\{\s*\\?%\s*\})\s*$", "", latex)
    latex = _bounds(latex)
    latex = _THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), latex)
    return braced(_LONG.sub(_fraction, _REPEATING.sub(_fraction, latex)))


def _fraction(decimal: re.Match[str]) -> str:
    whole, some, *more = decimal.groups("")
    period = "".join(more)
    value = Fraction(int(f"{whole}{some}" or 0), 10 ** len(some))
    if period:
        value += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(some))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def braced(latex: str) -> str:
    r"""The expression with braces around what fractions and roots take: \frac\pi2 as \frac{\pi}{2}. Digits stay, but
    all behind a root are under it: \sqrt18 is \sqrt{18}, as people write it."""
    made, start = [], 0
    while (found := _TAKES.search(latex, start)) is not None:
        end, taken = found.end(), []
        for _ in range(2 if found["frac"] else 1):
            argument, end = _argument(latex, end)
            taken.append(argument)
        if not found["frac"] and (digits := _ROOTED.match(latex, found.end())):
            taken, end = [digits[1]], digits.end()
        simple = all(len(each) < 2 and not (found["frac"] and each.isalpha()) for each in taken) and "[" not in found[0]
        made.append(latex[start : end if simple else found.end()])
        made += [] if simple else [f"{{{braced(each)}}}" for each in taken]
        start = end
    return "".join([*made, latex[start:]])


def _argument(latex: str, start: int) -> tuple[str, int]:
    """What a command takes that ends before `start`, and where that ends: a group, a command with its own, a sign."""
    start = re.compile(r"\s*").match(latex, start).end()  # type: ignore[union-attr]
    if latex.startswith("{", start) and (inside := boxed(rf"\boxed{latex[start:]}", MAX_CHARACTERS)) is not None:
        return inside, start + len(inside) + 2
    if found := _TAKES.match(latex, start):
        end = found.end()
        for _ in range(2 if found["frac"] else 1):
            _, end = _argument(latex, end)
        return latex[start:end], end
    end = found.end() if (found := _COMMAND.match(latex, start)) else min(start + 1, len(latex))
    return latex[start:end], end


def both_signs(latex: str) -> str:
    r"""A list in which each value with one \pm within a fraction or a root is two; math-verify reads it outside."""
    made = ",".join(map(_doubled, _pieces(latex)))
    return latex if made == latex else gathered(made)


def both_points(latex: str) -> str:
    r"""A list in which each point with one \pm is two: (3,\pm2) as (3,+2),(3,-2)."""
    return ",".join(
        _split(piece) if _POINT.fullmatch(piece) and "," in piece and len(re.findall(_SIGN, piece)) == 1 else piece
        for piece in _pieces(latex)
    )


def _doubled(piece: str) -> str:
    if found := _SET.fullmatch(piece):
        return f"{found[1]}{both_signs(found[2])}{found[3]}"
    tokens = list(_levels(piece))
    signs = [depth for token, depth in tokens if re.fullmatch(_SIGN, token[0])]
    listed = any(token[0] == "," for token, _ in tokens)
    return _split(piece) if len(signs) == 1 and signs[0] and not listed else piece


def _split(piece: str) -> str:
    plus = re.sub(_SIGN, "+", piece)
    return f"{plus},{re.sub(_SIGN, '-', piece)}"


def _pieces(latex: str) -> list[str]:
    """What stands between the commas of a list; those within brackets do not divide."""
    found, start = [], 0
    for token, depth in _levels(latex):
        if token[0] == "," and depth == 0:
            found.append(latex[start : token.start()])
            start = token.end()
    return [*found, latex[start:]]


def _levels(latex: str) -> Iterator[tuple[re.Match[str], int]]:
    """Brackets, commas and double signs, each with how many brackets are open before it."""
    depth = 0
    for token in _DEPTH.finditer(latex):
        yield token, depth
        depth += (token[0][-1] in "{([") - (token[0][-1] in "})]")
