"""Values of two expressions at one point: where they differ, no proof is needed, and none can take for ever.

math-verify asks sympy to simplify the difference. What that costs goes by the numbers that come up on the way, not by
those that are there: of log_2 x - 2^100 sympy makes log(2^(2^100)), and works the power out. Numerical values cost as
much precision as there are digits before the point, and how many those are is looked at before.
"""

from math import inf
from typing import Any

import sympy as sp
from sympy.core.evalf import PrecisionExhausted

MAX_BITS = 2.0**17  # of a number without variables, and of those on its way: beyond it nothing is evaluated
MAX_TERMS = 10_000
MAX_INDEX_BITS, MAX_DEGREE = 256, 8  # of sums in closed form
DIGITS = 25
FIRST = "0.7390851332151606416553120876738734"  # no rational number of few digits, and no constant of anybody's tables
UNBOUNDED = (sp.Derivative, sp.Integral, sp.Limit, sp.Product, sp.Sum)  # that numerical methods may work on for long
PERCENT = sp.UnevaluatedExpr  # how math-verify marks one: it takes 9% for 9


def _is_vast(found: Any) -> bool:
    """Whether an expression holds a number of more than MAX_BITS, such as 9^(9^9), or a sum or product of more than
    MAX_TERMS: it is not to be evaluated."""
    return isinstance(found, sp.Basic) and (
        any(not part.free_symbols and _bits(part) > MAX_BITS for part in found.atoms(sp.Pow, sp.factorial, sp.binomial))
        or any(_terms(part) > MAX_TERMS for part in found.atoms(sp.Sum, sp.Product))
    )


def _terms(found: Any) -> float:
    """How many terms a sum or product has, times those of the largest one in it; one with a symbolic or infinite bound
    counts as one."""
    count = 1.0
    for _, *bounds in found.limits:
        if len(bounds) == 2 and not any(bound.free_symbols or bound.is_infinite for bound in bounds):
            first, last = map(_index, bounds)
            count *= inf if first is None or last is None else float(max(1, last - first + 1))
    return count * max((_terms(part) for part in found.function.atoms(sp.Sum, sp.Product)), default=1.0)


def _index(bound: Any) -> int | None:
    """The whole number that a bound is; None for any other, and for one of more digits than any sum has terms."""
    number = bound.doit() if _bits(bound) <= MAX_INDEX_BITS else bound
    return int(number) if isinstance(number, sp.Integer) else None


def closed(found: Any) -> Any:
    """The expression with its sums of powers of whole numbers in closed form, however many terms they have."""
    if not isinstance(found, sp.Basic):
        return found
    sums = {each: each.doit() for each in found.atoms(sp.Sum) if _is_of_powers(each) and not _is_vast(each.function)}
    return found.xreplace(sums) if sums else found


def _is_of_powers(found: Any) -> bool:
    [(name, *bounds), *more] = found.limits
    return (
        not more
        and len(bounds) == 2
        and not any(bound.free_symbols or _index(bound) is None for bound in bounds)
        and found.function.free_symbols <= {name}
        and not found.function.has(sp.Sum, sp.Product)
        and bool(found.function.is_polynomial(name))
        and not any(
            isinstance(power.exp, sp.Integer) and power.exp > MAX_DEGREE for power in found.function.atoms(sp.Pow)
        )
    )


def differ(one: Any, other: Any) -> bool:
    """Whether they are different for sure: something in one of them has another value than anything in the other has,
    or is vast and not the very same. False says nothing."""
    if _is_vast(one) or _is_vast(other):
        return bool(one != other)
    match one, other:
        case sp.Equality(lhs=sp.Symbol() as name), sp.Equality() if name == other.lhs:
            if not one.rhs.has(name) and not other.rhs.has(name):  # both say what one name is
                one, other = one.rhs, other.rhs
    ours, theirs = elements(one), elements(other)
    if not ours or len(ours) != len(theirs):
        return False
    # a single name may stand for what the other one spells out: a word, a product of letters
    if any(isinstance(each, sp.Symbol) or each.has(*UNBOUNDED, PERCENT) for each in (*ours, *theirs)):
        return False
    names = sorted({symbol.name for each in (*ours, *theirs) for symbol in each.free_symbols})
    point = {name: sp.Float(FIRST, DIGITS + 10) + at for at, name in enumerate(names)}
    values = [[_value(each, point) for each in side] for side in (ours, theirs)]
    if any(value is None for side in values for value in side):
        return False
    return any(not any(_close(value, against) for against in values[1]) for value in values[0])


def rounds(exact: Any, decimal: str) -> bool:
    """Whether a decimal is what a number is to so many digits: rounded, or cut behind the second one or a later one."""
    if not isinstance(exact, sp.Expr) or _is_vast(exact) or exact.free_symbols or exact.has(*UNBOUNDED, PERCENT):
        return False
    value = _value(exact, {})
    if value is None or value[1] != 0:
        return False
    step, said = sp.Rational(1, 10 ** len(decimal.partition(".")[2])), sp.Rational(decimal)
    cut = abs(said) >= 10 * step and 0 <= (value[0] - said) * sp.sign(said) < step
    return bool(cut or abs(value[0] - said) <= step / 2)


def elements(found: Any) -> list[Any]:
    """The elements of a set, tuple or matrix, or the expression; none where they cannot be compared one by one."""
    match found:
        case sp.Interval():
            parts = [found.start, found.end]
        case sp.FiniteSet() | sp.Tuple():
            parts = list(found.args)
        case sp.MatrixBase():
            parts = list(found.flat())
        case _:
            parts = [found]
    return parts if all(isinstance(part, sp.Expr) for part in parts) else []


def _value(expression: Any, point: dict[str, Any]) -> Any:
    """The value to DIGITS digits, None where that is not sure."""
    try:
        value = expression.evalf(DIGITS, subs={each: point[each.name] for each in expression.free_symbols}, strict=True)
    # 0/0, cot(0), what has no numerical method, an element of an unknown matrix, the factorial of -3
    except (PrecisionExhausted, ArithmeticError, NotImplementedError, TypeError, ValueError):
        return None
    parts = value.as_real_imag()
    return parts if all(isinstance(part, sp.Number) and part.is_finite for part in parts) else None


def _close(one: Any, other: Any) -> bool:
    error = max(abs(part) for part in (*one, *other)) * sp.Float(10) ** (10 - DIGITS)
    return all(abs(mine - theirs) <= error for mine, theirs in zip(one, other, strict=True))


def _bits(found: Any) -> float:
    """An upper bound on the binary logarithm of a number, and of all numbers on the way to it."""
    match found:
        case sp.Float() | sp.NumberSymbol():
            return 64.0
        case sp.Number():
            return float(abs(found.p).bit_length() + found.q.bit_length()) if found.is_Rational else 1.0
        case sp.Pow():
            size, power = _bits(found.base), _bits(found.exp)
            return size * float(2 ** min(power, 64.0))
        case sp.factorial() | sp.binomial():
            size = _bits(found.args[0])
            return size * float(2 ** min(size, 64.0))
    return sum(map(_bits, found.args)) + 1.0
