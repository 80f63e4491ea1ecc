import ast
import pickle
import sys
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rl.arithmetic import MAX_BITS, MAX_CHARACTERS, MAX_DIGITS, MAX_NESTING, UnfitExpression, evaluate


@st.composite
def trees(draw: st.DrawFn, depth: int = 4) -> tuple[str, Fraction | None]:
    """(text, its value or None where it divides by zero), the value built without reading the text."""
    blank = draw(st.sampled_from(["", " ", "  ", "\t"]))
    kind = (
        draw(st.sampled_from(["integer", "decimal", "sign", "operation", "operation", "power"])) if depth else "integer"
    )
    if kind == "integer":
        number = draw(st.integers(0, 999))
        return str(number), Fraction(number)
    if kind == "decimal":
        whole, thousandths = draw(st.integers(0, 99)), draw(st.integers(0, 999))
        return f"{whole}.{thousandths:03}", Fraction(1000 * whole + thousandths, 1000)
    text, value = draw(trees(depth=depth - 1))
    if kind == "sign":
        sign = draw(st.sampled_from("+-"))
        return f"{sign}{blank}({text})", None if value is None else value * {"+": 1, "-": -1}[sign]
    if kind == "power":
        exponent = draw(st.integers(-2, 2))
        power = Fraction(1)
        if value is None or (value == 0 and exponent < 0):
            return f"({text}){blank}**{blank}{exponent}", None
        for _ in range(abs(exponent)):
            power = power * value if exponent > 0 else power / value
        return f"({text}){blank}**{blank}{exponent}", power
    other_text, other = draw(trees(depth=depth - 1))
    operator = draw(st.sampled_from(["+", "-", "*", "/", "//", "%"]))
    both = f"({text}){blank}{operator}{blank}({other_text})"
    if value is None or other is None or (operator in ("/", "//", "%") and other == 0):
        return both, None
    quotient = value * Fraction(other.denominator, other.numerator) if other else Fraction(0)
    floor = quotient.numerator // quotient.denominator
    results = {
        "+": value + other,
        "-": value - other,
        "*": value * other,
        "/": quotient,
        "//": Fraction(floor),
        "%": value - other * floor,
    }
    return both, results[operator]


def value_or_reason(text: str) -> Fraction | str:
    try:
        return evaluate(text)
    except UnfitExpression as unfit:
        return unfit.reason


@pytest.mark.slow
@settings(max_examples=600, deadline=None, database=None)
@given(trees())
def test_values_agree_with_those_built_beside_the_text(tree: tuple[str, Fraction | None]) -> None:
    text, value = tree
    assume(len(text) <= MAX_CHARACTERS)
    assert value_or_reason(text) == ("division_by_zero" if value is None else value)


OPERATORS = ["+", "-", "*", "//", "%", "**", "+-", "*-", "-+"]


@pytest.mark.slow
@settings(max_examples=600, deadline=None, database=None)
@given(st.lists(st.tuples(st.sampled_from(OPERATORS), st.integers(1, 5)), max_size=7))
def test_precedence_among_whole_numbers_is_that_of_python(chain: list[tuple[str, int]]) -> None:
    text = "7" + "".join(f"{operator}{number}" for operator, number in chain)
    value = value_or_reason(text)
    assume(value not in ("too_large", "division_by_zero"))
    assert value == eval(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1 + 0.2", Fraction(3, 10)),
        ("0.1", Fraction(1, 10)),
        (".5", Fraction(1, 2)),
        ("007.5", Fraction(15, 2)),
        ("1/3*3", Fraction(1)),
        ("10**20 + 0.5 - 10**20", Fraction(1, 2)),
        ("-7 // 2", Fraction(-4)),
        ("-7 % 3", Fraction(2)),
        ("7.5 // 2", Fraction(3)),
        ("-0.5 % 0.3", Fraction(1, 10)),
        ("2**3**2", Fraction(512)),
        ("-2**2", Fraction(-4)),
        ("2**-2", Fraction(1, 4)),
        ("4**(4/2)", Fraction(16)),
        ("(-1)**(10**100 + 1)", Fraction(-1)),
        ("0**0", Fraction(1)),
    ],
)
def test_values_are_exact(text: str, value: Fraction) -> None:
    assert evaluate(text) == value


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        ("1" * MAX_DIGITS, "1" * (MAX_DIGITS + 1)),
        ("(" * MAX_NESTING + "1" + ")" * MAX_NESTING, "(" * (MAX_NESTING + 1) + "1" + ")" * (MAX_NESTING + 1)),
        ("-" * MAX_NESTING + "1", "-" * (MAX_NESTING + 1) + "1"),
        ("1 " + "+ 1 " * 127 + "+1", "1 " + "+ 1 " * 127 + "+ 1"),
        (f"2**{MAX_BITS // 2}", f"2**{MAX_BITS // 2 + 1}"),
        (f"2**-{MAX_BITS // 2}", f"2**-{MAX_BITS // 2 + 1}"),
    ],
)
def test_each_bound_holds_where_it_says(within: str, beyond: str) -> None:
    evaluate(within)
    with pytest.raises(UnfitExpression) as unfit:
        evaluate(beyond)
    assert unfit.value.reason == "too_large"


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_a_parser_that_gives_up_is_a_reason(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def gives_up(*_: object, **__: object) -> None:
        raise error("too many nested parentheses")

    monkeypatch.setattr(ast, "parse", gives_up)
    with pytest.raises(UnfitExpression) as unfit:
        evaluate("1 + 1")
    assert unfit.value.reason == "too_large"


def test_a_long_sum_needs_no_deep_stack() -> None:
    limit = sys.getrecursionlimit()

    def deeper(left: int) -> Fraction:
        return evaluate("1" + "+1" * 255) if left == 0 else deeper(left - 1)

    assert deeper(limit // 2) == 256


def test_the_exception_survives_pickling() -> None:
    with pytest.raises(UnfitExpression) as unfit:
        evaluate("1/0")
    copy = pickle.loads(pickle.dumps(unfit.value))
    assert isinstance(copy, UnfitExpression)
    assert (copy.reason, str(copy)) == ("division_by_zero", str(unfit.value))
