"""Verifier `countdown`: an expression that makes the target of the given numbers, each used exactly once.

What is read is the last ``<answer>…</answer>``, or else the last code fence, or else the last line that is not blank.
The numbers are a problem's column `numbers` (or `nums`), its target a whole number.
"""

import ast
import re
from collections import Counter
from fractions import Fraction

from rl.arithmetic import UnfitExpression, evaluate, parse
from rl.records import Instructions, Problem, Verdict
from rl.verifiers.contract import Declared
from rl.verifiers.reading.written import WrongEquation, answered, expression, fenced

INSTRUCTIONS = Instructions(
    "Write one expression with + - * / and brackets that has the value asked for and uses each of the given numbers "
    "exactly once. Answer with the expression alone.",
    (("combine 3, 5 and 7 to obtain 26.", "3 * 7 + 5"),),
)
MAX_NUMBERS = 16
COLUMNS = ("numbers", "nums")

_LIST = re.compile(r"[\[(]?\s*[0-9]{1,12}(?:[\s,;]+[0-9]{1,12})*\s*[\])]?")
_ALLOWED = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def numbers_of(problem: Problem) -> list[int]:
    """The numbers to use. Raises ValueError where there are none."""
    given = next((problem.extra[column] for column in COLUMNS if problem.extra.get(column) is not None), None)
    if given is None:
        raise ValueError(f"needs a column {' or '.join(COLUMNS)} beside it, such as [3, 5, 7] or 3 5 7")
    if isinstance(given, str) and _LIST.fullmatch(given.strip()):
        found = [int(word) for word in re.findall("[0-9]+", given)]
    elif isinstance(given, list) and all(type(one) is int and one >= 0 for one in given):
        found = given
    else:
        raise ValueError(f"has numbers {str(given)[:60]!r}, not a list of whole numbers such as [3, 5, 7] or 3 5 7")
    if not 1 <= len(found) <= MAX_NUMBERS:
        raise ValueError(f"has {len(found)} numbers, allowed are 1 to {MAX_NUMBERS}")
    return found


def check(problem: Problem) -> None:
    """Raise ValueError unless the problem has numbers and a whole target."""
    if not re.fullmatch("-?[0-9]{1,12}", problem.target):
        raise ValueError("is not a whole number")
    numbers_of(problem)


def stated(completion: str) -> str:
    """The part of a completion that is read."""
    lines = fenced(answered(completion)).strip().splitlines()
    return lines[-1].strip() if lines else ""


def literals(expression: str) -> list[str]:
    """The numbers of an expression as they are written, found on its tree. Raises UnfitExpression."""
    found = []
    for node in ast.walk(parse(expression)):
        match node:
            case ast.Constant(col_offset=start, end_col_offset=end):
                found.append(expression[start:end])
            case ast.BinOp(op=operator) if not isinstance(operator, _ALLOWED):
                raise UnfitExpression("forbidden", f"{type(operator).__name__} is not one of + - * /")
    return found


def verify(problem: Problem, completion: str) -> Verdict:
    """Reward 1 for a right expression, else 0; `format` is 1 for any with a value. Raises ValueError for a broken
    problem."""
    check(problem)
    try:
        read = expression(stated(completion))
        written = literals(read)
        value = evaluate(read)
    except UnfitExpression as unfit:
        return Verdict(0.0, unfit.reason, {"format": 0.0, "right": 0.0})
    except WrongEquation:
        return Verdict(0.0, "wrong_equation", {"format": 0.0, "right": 0.0})
    if Counter(written) != Counter(map(str, numbers_of(problem))):
        return Verdict(0.0, "wrong_numbers", {"format": 1.0, "right": 0.0})
    right = float(value == Fraction(problem.target))
    return Verdict(right, "right" if right else "wrong_value", {"format": 1.0, "right": right})


VERIFIER = Declared(INSTRUCTIONS, tokens=256, check=check, verify=verify)
