r"""Verifier `gsm8k`: one number after ``####`` or in ``\boxed{}``, the last of them, compared exactly. What is passed
over around it, and what makes another number of it, is in docs/verifiers.md."""

import re
from fractions import Fraction

from rl.arithmetic import UnfitExpression, evaluate
from rl.records import Instructions, Problem, Verdict
from rl.verifiers.contract import Declared
from rl.verifiers.reading import wording
from rl.verifiers.reading.written import BOX, TEXT, behind_thinking, in_box, plain

INSTRUCTIONS = Instructions(
    "Think step by step. End with a line of #### and the answer as one number, for example: #### 42"
)
MAX_CHARACTERS = 256  # of the answer itself, not of the completion
MAX_DIGITS = 64

MAX_CANDIDATES = 16  # answers and headings that are looked at, from the last one on

_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|\\[dt]?frac\s*([0-9])\s*([0-9])")
_LABEL = re.compile(
    r"[\s*_`$]*(?:(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\b|[A-Za-z][A-Za-z_' ]{0,60}(?=[:=])|[A-Za-z' ]{0,60} is\b"
    r"|(?:it|that|there)['’]s\b)"
    r"[\s*_`]*[:=]?",
    re.IGNORECASE,
)
_CURRENCY = re.compile(
    r"(?:(?:USD|EUR|GBP|JPY|INR|CNY|CAD|AUD|NZD|Rs)\b\.?|(?:US|CA|AU|NZ|HK|A|C)\s?(?=\$))", re.IGNORECASE
)
_NUMBER = re.compile(
    r"[\s$€£¥₹*_`({\[:=\"'“‘]*"
    r"(?P<sign>[+-]?)[\s$€£¥₹({]*"
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]*)(?P<decimals>\.[0-9]+)?"
    r"(?:\s*/\s*(?P<below>[0-9]+))?"
    r"(?P<rest>.*)",
    re.DOTALL,
)
_UNIT_POWER = re.compile(  # km^2, m^{3}, m², cm2
    r"(?<=[A-Za-z}])(?:\s*\^\s*\{?\s*[23]\s*\}?|[²³])|(?<![A-Za-z])(?:[cdkm]?m|ft|in|yd|mi|units?)[23]\b"
)
_DEGREES = re.compile(r"^\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree|\\circ)")
_SPACE = re.compile(r"\\(?:[,;:! ()\[\]]|quad\b|qquad\b)|~")
_BOLD = re.compile(r"(?<![\w*)])\*\*([$€£¥₹]?[0-9][0-9,]*(?:\.[0-9]+)?)\*\*(?=\s+[A-Za-z])")  # **42** apples
_MONEY = re.compile("[$€£¥₹]")
_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9_]*\s*/?>|<\|[A-Za-z0-9_]{1,40}\|>")  # <answer>, </b>, <|im_end|>
_WORKING = re.compile(r"<<[^<>]*>>\s*(?=[$€£¥₹]?[0-9])")  # <<6*7=42>>42
_ANGLED = re.compile(r"<<?([^<>]*)>>?(?=\W*\Z)")
_IS_TOTAL = re.compile(r"^\s*=\s*(?=[A-Za-z][A-Za-z' ]*\W*\Z)")  # 42 = total
_ABOUT = re.compile(r"[\s$*_`(\[{]*(?:~|\\(?:sim|approx)\b)")
_DASH = re.compile(r"–(?=[$€£¥₹]?\.?[0-9])")  # with a blank behind it, it is a dash
_LABEL_ALONE = re.compile(
    r"[\s*_`]*(?:the\s+)?(?:final\s+|numerical\s+)?answer(?:\s+is)?[\s*_`]*[:=]?[\s*_`]*", re.IGNORECASE
)
_LEADING = re.compile(r"\s*[+-]?\s*[0-9][0-9,]*(?:\.[0-9]+)?(?:\s*/\s*[0-9]+)?(?=\s*[A-Za-z%])")  # 42 of 42 apples
_SCALE = re.compile(rf"\s*(?:k|K|M|B|b|G|{wording.ABBREVIATED})\b")  # 42k, 42 mil
_VARIABLE = re.compile(  # 42x, 42n; not 42 t-shirts, 6 p.m., 42p
    r"(?!\s+[A-Za-z]-[A-Za-z]{2}|\s*[ap]\.\s?m\b|[pc](?:\s+[A-Za-z]{2}|[\s.,;*)]*\Z))"
    r"\s*(?:[xyzXYZ](?![A-Za-z])|(?!o['’]\s?clock\b)[abcdefinopqrtuvw]\s*(?![A-Za-z\s])|(?:pi|sqrt)\b)"
)
_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:\\,\d{3})+(?!\d)")
_ALONE = re.compile(r"[\s*`]*[+-]?[0-9][0-9,]*(?:\.[0-9]+)?[\s*`.]*")
_FULL_HOUR = re.compile(r"^:00(?![0-9:.])")
_HEADING = re.compile(r"(?:step|part|case|problem|question|example|check|method)\b\W*[0-9]", re.IGNORECASE)
_EXPLAINED = re.compile(r"(?P<answer>.*\S)\s+\((?P<how>[^()]*)\)[\s.*_`]*", re.DOTALL)  # 42 (6*7), 42 (forty-two)
_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


class NoNumber(ValueError):  # noqa: N818  the name says what is wrong with the answer
    """Text that is not one number; the argument is the verdict's reason."""


def answer(text: str) -> str | None:
    r"""What stands after the last ``####`` (`_line`) or in the last ``\boxed{}``, whichever comes later; an earlier one
    where the last is a heading or nothing."""
    end, last = len(text), None
    for _ in range(MAX_CANDIDATES):
        at = text.rfind("####", 0, end)
        boxed = text.rfind("\\boxed", max(at, 0), end)
        if boxed >= 0 and (box := BOX.match(text, boxed)):
            return in_box(box, MAX_CHARACTERS)
        if boxed >= 0:
            end = boxed
            continue
        if at < 0:
            break
        stated = _line(text[at + 4 : end])
        end = at
        while end and text[end - 1] == "#":  # a longer row of them
            end -= 1
        if stated.strip("#") and not _is_heading(stated):
            return stated
        last = stated if last is None else last
    return last


def _line(text: str) -> str:
    """The first line; where that is empty or a label alone, the next one that is not blank."""
    first, _, below = text.partition("\n")
    if first.strip().strip("#") and not _LABEL_ALONE.fullmatch(first[:MAX_CHARACTERS]):
        return first.strip()
    following = below.lstrip().partition("\n")[0].strip()
    return following if following.strip("#") else first.strip()


def _is_heading(stated: str) -> bool:
    stated = stated[:MAX_CHARACTERS].lstrip("*_# ")
    if not stated[:1].isalpha():
        return False
    return bool(_HEADING.match(stated)) or not (re.search("[0-9]", stated) or wording.NUMERAL.search(stated))


def number(text: str) -> Fraction:
    """The one number that the text is. Raises NoNumber."""
    if len(text) > MAX_CHARACTERS:
        raise NoNumber("too_large" if text[:MAX_CHARACTERS].strip().isdigit() else "no_number")
    if _ABOUT.match(text):
        raise NoNumber("ambiguous")
    text = _BOLD.sub(r"\1", text)
    text = _ANGLED.sub(r"\1", _WORKING.sub("", _TAG.sub(" ", text)))
    text = _DASH.sub("-", text).replace("−", "-").replace("{,}", ",").replace(",\\!", ",")
    text = _THOUSANDS.sub(lambda found: found[0].replace("\\,", ""), text)
    text = text.replace("\\$", "$").replace("\\%", "%").replace("#", " ")
    text = TEXT.sub(r" \1 ", _FRACTION.sub(lambda found: "/".join(filter(None, found.groups())), text))
    text = _SPACE.sub(" ", text)
    text = wording.CONCLUDING.sub("", text, count=1) if wording.CONCLUDING.match(text) else text
    if label := _LABEL.match(text):
        if wording.TURNING.match(label[0].strip(" *_`:=")):
            raise NoNumber("ambiguous")
        text = text[label.end() :]
    text = wording.CONCLUDING.sub("", text, count=1) if wording.CONCLUDING.match(text) else text
    if numbered := wording.NUMBERED.match(text):
        text = text[numbered.end() :]
    said = wording.said_in_a_sentence(text)
    spoken = said is not None or bool(label and label[0].rstrip(" *_`:").endswith(" is"))
    text = _equal_sides(said or text)
    text = _CURRENCY.sub("", text.lstrip(" *_`({["), count=1) if _CURRENCY.match(text.lstrip(" *_`({[")) else text
    found = _NUMBER.match(text)
    if found is None or not (found["whole"] or found["decimals"]):
        raise NoNumber("no_number")
    whole, decimals, below = found["whole"].replace(",", ""), found["decimals"] or "", found["below"] or "1"
    is_hour = whole + decimals + below in {f"{hour}1" for hour in range(25)}
    rest = _IS_TOTAL.sub("", _FULL_HOUR.sub("", found["rest"]) if is_hour else found["rest"])
    _check_rest(_DEGREES.sub("", rest), money=bool(_MONEY.search(found[0][: found.start("whole")])), spoken=spoken)
    if len(whole) + len(decimals) + len(below) > MAX_DIGITS:
        raise NoNumber("too_large")
    if not int(below):
        raise NoNumber("no_number")
    value = Fraction(f"{whole or '0'}{decimals}") / int(below)
    return -value if found["sign"] == "-" else value


def _equal_sides(text: str) -> str:
    """The last side of ``6 * 7 = 42 apples``, the first of ``42 = 6 * 7``, if the sides are the same number; else the
    text as it is."""
    *first, last = text.split("=")
    if not first or not any(side.strip(" $*`") for side in first):
        return text
    try:
        bare = [_MONEY.sub("", side) for side in [*first, last]]
        if counted := _LEADING.match(bare[-1]):  # what it counts is looked at with the rest of the answer
            bare[-1] = counted[0].replace(",", "")
        values = [evaluate(plain(side)) for side in bare]
    except UnfitExpression:
        return text
    if len(set(values)) > 1:
        return text
    return last if counted or not _ALONE.fullmatch(bare[0]) else first[0]


def _check_rest(rest: str, *, money: bool, spoken: bool) -> None:
    """Raise NoNumber unless what follows a number leaves it as it is: a unit, words, punctuation."""
    if re.match(r",[0-9]", rest):
        raise NoNumber("no_number")  # 1,23: which of two numbers is meant?
    if _SCALE.match(rest) or (money and re.match(r"\s*m\b", rest)) or _VARIABLE.match(rest):
        raise NoNumber("ambiguous")
    if money or spoken:  # no factorial: the exclamation of what is said
        rest = re.sub(r"\A!(?=\W*\Z)", "", rest)
    if re.match(r"\s*(?:!|\^|\.\.|…|\*+\s*[A-Za-z(]|[/+-]\s*[A-Za-z]\b)", rest):
        raise NoNumber("ambiguous")
    rest = _UNIT_POWER.sub("", rest)
    if re.search(r"[=+<>√±×÷≠≈∞π≤≥⩽⩾≦≧≪≫~∼\\]", rest) or any(character.isnumeric() for character in rest):
        raise NoNumber("ambiguous")
    rest = wording.FAULTY.sub("", wording.GROSS.sub("", rest) if money else rest)
    if wording.OTHER_NUMBER.search(rest) or wording.TAKEN_BACK.search(rest) or wording.INEXACT.search(rest):
        raise NoNumber("ambiguous")


def unexplained(text: str) -> str:
    """An answer without a bracket behind it that says the same number once more, as what it is worked out from or as a
    word."""
    found = _EXPLAINED.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    if found is None:
        return text
    how, *others = [plain(side) for side in found["how"].removeprefix("=").split("=")]
    try:
        value = number(found["answer"])
        if "-".join(how.lower().split()) == _spelled(value) and not others:
            return found["answer"]
        worked_out = re.search(r"[0-9]\s*[-+*/]\s*[0-9]", how) and {evaluate(side) for side in (how, *others)} == {
            value
        }
    except (NoNumber, UnfitExpression):
        return text
    return found["answer"] if worked_out else text


def _spelled(value: Fraction) -> str:
    """A whole number below a hundred as a word."""
    if value.denominator > 1 or not 0 <= value < 100:
        return ""
    tens, ones = divmod(int(value), 10)
    return _ONES[int(value)] if tens < 2 else "-".join((_TENS[tens - 2], *([_ONES[ones]] if ones else [])))


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
    stated = answer(behind_thinking(completion))
    try:
        if stated is None:
            raise NoNumber("no_answer" if completion.strip() else "empty")
        stated = unexplained(stated)
        value = number(wording.without_counted(stated, problem.prompt))
        if wording.compares(stated, problem.prompt):
            raise NoNumber("ambiguous")
    except NoNumber as error:
        return Verdict(0.0, str(error), {"format": 0.0, "right": 0.0})
    right = float(value == wanted)
    return Verdict(right, "right" if right else "wrong_value", {"format": 1.0, "right": right})


def example(problem: Problem) -> str:
    """A right completion, with the target's number alone where that is a whole one."""
    value = target_value(problem.target)
    return f"#### {value if value.denominator == 1 else problem.target}"


VERIFIER = Declared(INSTRUCTIONS, tokens=512, check=check, example=example, verify=verify)
