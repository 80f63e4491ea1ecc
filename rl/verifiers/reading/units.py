r"""Units of measure and money beside a number, which math-verify passes over: 5\text{ cm} is 5\text{ m} to it.

A unit is its parts with their powers: mph is (mi, 1), (h, -1). A word that no table has is a part of its own, in the
plural; so are apples.
"""

import re
from collections import Counter
from collections.abc import Mapping

from rl.verifiers.reading.wording import NUMERAL

# of two that differ by a capital the later one counts where there is none
_PREFIXES = {"M": "mega", "": "", "n": "nano", "μ": "micro", "m": "milli", "c": "centi", "d": "deci", "k": "kilo"}
# each with its names behind its symbol
_PREFIXED = """
m meter metre, g gram gm, s second sec, L liter litre l, J joule, W watt, V volt, A ampere amp, N newton, Pa pascal,
Hz hertz, mol mole, cal calorie
"""
_OTHERS = """
in inch, ft foot feet, yd yard, mi mile, min minute, h hour hr, day, wk week, month, yr year, oz ounce, lb pound,
gal gallon, qt quart, pt pint, tbsp tablespoon, tsp teaspoon, dollar $ usd buck, cent ¢, euro € eur, percent % pct,
degree deg, radian rad, gradian grad gon, C celsius centigrade, F fahrenheit, person people, child children
"""
_COMPOUNDS = {
    "mph": {"mi": 1, "h": -1},
    "kph": {"km": 1, "h": -1},
    "kmh": {"km": 1, "h": -1},
    "fps": {"ft": 1, "s": -1},
    "wh": {"W": 1, "h": 1},
    "kwh": {"kW": 1, "h": 1},
    "mwh": {"MW": 1, "h": 1},
}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}

_BLANK = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![A-Za-z]))"
_TEXT = r"\\(?:text|textbf|textit|mathrm|rm)\s*\{(?!(?:\s|~)*[ijk]\s*\})[^{}]*\}"  # but no upright i
_POWER = r"\s*(?:\^\s*(?:[0-9]|\{\s*-?\s*[0-9]\s*\})|[²³])"
_DEGREE = r"(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|°|\\degree(?![A-Za-z]))(?:\s*[CF](?![A-Za-z]))?"
_SIGN = r"\\?[$%]|[€£¢]|\\pounds(?![A-Za-z])"
_PART = rf"(?:{_TEXT}|{_DEGREE}|{_SIGN})(?:{_POWER})?"
_TEXTS = rf"{_TEXT}(?:{_POWER})?"
_FRACTION = re.compile(
    rf"(?P<behind>(?<=[0-9}}]){_BLANK}*)?\\[dt]?frac\s*\{{\s*({_TEXTS})\s*\}}\s*\{{\s*({_TEXTS})\s*\}}"
)
# behind a number or a name, and no conjunction, nor the e or d of mathematics
_BEHIND = (
    rf"(?:(?<=[0-9)\]}}!%|°])|(?<=\\pi)|(?<=\\circ)|(?<=(?<![A-Za-z\\])[A-Za-z])){_BLANK}*(?!\\mathrm\s*\{{\s*[de]\s*\}})"
    rf"(?!\\\w+\s*\{{\s*(?:and|or)\s*\}}){_TEXT}"
)
_MORE = re.compile(_BEHIND)
_ENDING = re.compile(rf"{_BEHIND}(?:{_POWER})?(?:(?:{_BLANK}|/|\\cdot(?![A-Za-z])|·)*{_TEXTS})*{_BLANK}*\.?\Z")
_SHARED = re.compile(  # by the elements of a list
    rf"(?P<unit>{_BEHIND}(?:{_POWER})?)"
    rf"(?={_BLANK}*(?:,|\\text\s*\{{\s*(?:and|or)\s*\}}|(?:(?:\\right\s*)?(?:\)|\\\}}))?{_BLANK}*\.?\Z))"
)
_LAST = re.compile(
    rf"(?<=.)(?P<unit>{_BLANK}*{_PART}(?:(?:{_BLANK}|/|\\cdot(?![A-Za-z])|·)*{_PART})*){_BLANK}*\.?\Z", re.S
)
_MONEY = re.compile(
    r"(?P<money>\\\$|\A\$(?=[^$]*\Z)|[€£]|\\pounds(?![A-Za-z]))(?=[\s}]*[-+]?\s*(?:[0-9.]|\\[dt]?frac))"
)
_MATHEMATICS = re.compile(r"\A\s*\$(?P<inside>.*)\$\s*\Z", re.S)
_SPELLED = (
    (re.compile(r"\\circ|°|\\degree"), " degree "),
    (re.compile(r"£|\\pounds"), " pound "),
    (re.compile("µ"), "μ"),
    (re.compile("²"), "^2"),
    (re.compile("³"), "^3"),
    (re.compile(r"\b([ap])\.\s?m\b\.?", re.IGNORECASE), r" \1m "),
)
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|[,;:! ])")
_TOKEN = re.compile(r"(?P<per>/|\b(?:per|an?)\b)|\^?\s*\{?\s*(?P<power>-?\s*[0-9])|(?P<word>[^\W\d_]+|[$%€¢])")

Unit = Mapping[str, int]


def plural(word: str) -> str:
    """A noun in the plural, where it may be one already."""
    if re.search(r"[^aeiou]y\Z", word):
        return f"{word[:-1]}ies"
    if re.search(r"(?:x|ch|sh|ss|us)\Z", word):
        return f"{word}es"
    return word if word.endswith("s") else f"{word}s"


def _rows(table: str) -> dict[str, list[str]]:
    return {symbol: names for symbol, *names in (row.split() for row in table.split(","))}


_SYMBOLS = {*_rows(_OTHERS), *(prefix + unit for unit in _rows(_PREFIXED) for prefix in _PREFIXES)}
_NAMES = {
    **{plural(name): unit for unit, names in _rows(_OTHERS).items() for name in (unit, *names)},
    **{
        plural((said if len(name) > 3 else prefix) + name).lower(): prefix + unit  # kilogram, but kgm
        for unit, names in _rows(_PREFIXED).items()
        for name in (unit, *names)
        for prefix, said in _PREFIXES.items()
    },
}


def parts(said: str) -> Unit:
    """A unit in symbols or words: ``km/h``, ``miles per hour``, ``cm^2``, ``square centimeters``, ``red apples``."""
    for sign, word in _SPELLED:
        said = sign.sub(word, said)
    found: Counter[str] = Counter()
    side, ahead, last = 1, 1, ""
    for token in _TOKEN.finditer(" ".join(_COMMAND.sub(" ", said).split())):
        word = token["word"]
        if token["per"]:
            side, last = -1, ""
        elif token["power"]:
            if last:
                found[last] *= int(token["power"].replace(" ", ""))
        elif word.lower() in _POWERS:
            if last and word.lower().endswith("ed"):  # feet squared
                found[last] *= _POWERS[word.lower()]
            else:
                ahead = _POWERS[word.lower()]
        elif word.lower() in _COMPOUNDS:
            for part, power in _COMPOUNDS[word.lower()].items():
                found[part] += side * power
        else:
            last = _known(word) or plural(word.lower())
            found[last] += side * ahead
            ahead = 1
    if last:
        found[last] *= ahead  # cm square
    return found


def _known(word: str) -> str:
    """The symbol of a unit of measure, whose capitals count where they make another one; empty of other words."""
    if word in _SYMBOLS:
        return word
    return _NAMES.get(plural(word.lower()), word.lower() if word.lower() in _SYMBOLS else "")


def unit_of(latex: str) -> Unit:
    """The unit around the number of an expression; none where it has no plain one."""
    if inside := _MATHEMATICS.fullmatch(latex):
        latex = inside["inside"]
    latex = _FRACTION.sub(r"\2/\3", latex)
    found, money = _LAST.search(latex), _MONEY.search(latex)
    unit = parts(re.sub(r"\\(?:text\w*|mathrm|rm)(?![A-Za-z])", " ", found["unit"])) if found else {}
    return {**parts(money["money"]), **unit} if money else unit


def in_line(latex: str) -> str:
    r"""A fraction of units in one text: 5\frac{\text{m}}{\text{s}} as 5\text{ m/s }."""
    return _FRACTION.sub(
        lambda found: found[0] if found["behind"] is None else rf"\text{{ {_said(found[2])}/{_said(found[3])} }}", latex
    )


def _said(part: str) -> str:
    """The words of a text."""
    return re.sub(r"\\[a-z]+|[{}]", "", part)


def without_text(latex: str) -> str:
    """An expression without the unit in texts behind it."""
    found = _ENDING.search(latex)
    if found is None or not re.search("[0-9A-Za-z]", re.sub(rf"{_TEXT}|\\(?!pi)[A-Za-z]+", "", latex[: found.start()])):
        return latex
    return latex[: found.start()]


def has_more(latex: str) -> bool:
    r"""Whether anything stands behind a unit in a text, as in 2\text{ hours }30\text{ minutes}: math-verify passes over
    it."""
    return bool(_MORE.search(without_text(latex)))


def gathered(latex: str) -> str:
    r"""A list whose numbers have one unit with that behind the last one: 3\text{ cm},4\text{ cm} as 3,4\text{ cm}."""
    units = [found["unit"] for found in _SHARED.finditer(latex)]
    numbers = _SHARED.sub("", latex)
    if not units or re.search("[0-9]", "".join(re.findall(_TEXT, "".join(units)))):
        return latex
    plain = re.sub(r"\\text\s*\{\s*(?:and|or)\s*\}", "", numbers)
    if re.search(_TEXT, plain) or any(parts(unit) != parts(units[0]) for unit in units):
        return latex
    return numbers.rstrip(" .") + units[-1]


def other_unit(ours: Unit, theirs: Unit) -> bool:
    """Whether both are there, and not the same. Of words that no table has, theirs may leave some out, and of degrees
    whose they are."""
    if not ours or not theirs or ours == theirs or goes_on(ours, theirs):
        return False
    if _is_known(ours):
        return not ("degree" in ours and theirs == {"degree": 1})
    return below(ours) != below(theirs) or not theirs.items() <= ours.items()


def goes_on(ours: Unit, theirs: Unit) -> bool:
    """Whether theirs is our unit of measure with words behind it that are neither one nor a number: years old."""
    said = list(theirs.items())
    return (
        _is_known(ours)
        and dict(said[: len(ours)]) == ours
        and all(
            power == 1 and word not in _SYMBOLS and re.search("[aeiouy]", word) and not NUMERAL.search(word[:-1])
            for word, power in said[len(ours) :]
        )
    )


def _is_known(unit: Unit) -> bool:
    return bool(unit) and all(part in _SYMBOLS for part in unit)


def below(unit: Unit) -> set[str]:
    """What a unit is per: h in km/h."""
    return {part for part, power in unit.items() if power < 0}
