"""Arithmetic expressions: exact values, and bounds on everything a completion could make expensive.

Only text made of digits, ``. + - * / % ( )`` and blanks reaches Python's parser, and only within the bounds on length
and nesting; so the parser neither warns nor exhausts its stack, whatever a model writes.
"""

import ast
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Literal

MAX_CHARACTERS = 512
MAX_NESTING = 64  # open brackets at one place; signs in a row
MAX_DIGITS = 128  # in one number
MAX_BITS = (
    2048  # of every numerator and denominator, intermediate ones too: 250 operations of that size take about 4 ms
)

Unfit = Literal["empty", "unparsable", "forbidden", "too_large", "division_by_zero"]

_PRINTABLE = re.compile(r"[\t -~]*")
_ARITHMETIC = re.compile(r"[0-9.+\-*/%() \t]*")
_SIGNS = re.compile(rf"(?:[+-][ \t]*){{{MAX_NESTING + 1}}}")

_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: lambda left, right: left % right,
    ast.Pow: lambda left, right: Fraction(left ** int(right)),
}


class UnfitExpression(ValueError):  # noqa: N818  the name says what is wrong with the expression
    """An expression without a value."""

    def __init__(self, reason: Unfit, detail: str) -> None:
        super().__init__(reason, detail)  # both in args: that is what pickle calls the class with
        self.reason: Unfit = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


def evaluate(expression: str) -> Fraction:
    """The exact value: 0.1 is 1/10, // and % round towards minus infinity, ** takes whole exponents.

    Raises UnfitExpression.
    """
    text = expression.strip()
    tree = parse(text)
    values: list[Fraction] = []
    for node in _operands_first(tree):
        match node:
            case ast.Constant(col_offset=start, end_col_offset=end):
                values.append(_number(text[start:end]))
            case ast.UnaryOp(op=ast.USub()):
                values.append(-values.pop())
            case ast.BinOp(op=operator):
                right, left = values.pop(), values.pop()
                _check_operation(operator, left, right)
                values.append(_OPERATIONS[type(operator)](left, right))
    [value] = values
    return value


def parse(text: str) -> ast.expr:
    """The tree of a text without blanks around it; only its shape is known to be harmless. Raises UnfitExpression."""
    if not text:
        raise UnfitExpression("empty", "nothing is written")
    if len(text) > MAX_CHARACTERS:
        raise UnfitExpression("too_large", f"{len(text)} characters, at most {MAX_CHARACTERS} are read")
    if not _PRINTABLE.fullmatch(text):
        raise UnfitExpression("unparsable", "a control character, or one outside ASCII")
    if not _ARITHMETIC.fullmatch(text):
        raise UnfitExpression("forbidden", "only digits, . + - * / % and round brackets are allowed")
    depth = deepest = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    if deepest > MAX_NESTING or _SIGNS.search(text):
        raise UnfitExpression("too_large", f"nested deeper than {MAX_NESTING}")
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise UnfitExpression("unparsable", error.msg) from error
    except (MemoryError, RecursionError) as error:  # how a parser with less room than this one's would say "too deep"
        raise UnfitExpression("too_large", "too deep for Python's parser") from error


def _operands_first(tree: ast.expr) -> list[ast.expr]:
    """The nodes, each after its operands, left before right; without recursion, which a long sum would exhaust."""
    nodes: list[ast.expr] = []
    pending = [tree]
    while pending:
        node = pending.pop()
        nodes.append(node)
        match node:
            case ast.Constant(value=int() | float()):
                pass
            case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
                pending.append(operand)
            case ast.BinOp(op=operator, left=left, right=right) if type(operator) in _OPERATIONS:
                pending += (left, right)
            case _:
                raise UnfitExpression("forbidden", f"{type(node).__name__} is not arithmetic")
    return nodes[::-1]


def _number(literal: str) -> Fraction:
    if len(literal) > MAX_DIGITS:
        raise UnfitExpression("too_large", f"a number of {len(literal)} digits, at most {MAX_DIGITS} are read")
    return Fraction(literal)


def _check_operation(operator: ast.operator, left: Fraction, right: Fraction) -> None:
    """Raise unless the operation is defined and its result, before it is reduced, is sure to fit in MAX_BITS."""
    a, b, c, d = (n.bit_length() for n in (left.numerator, left.denominator, right.numerator, right.denominator))
    match operator:
        case ast.Div() | ast.FloorDiv() | ast.Mod() if not right:
            raise UnfitExpression("division_by_zero", "division by zero")
        case ast.Pow() if right.denominator != 1:
            raise UnfitExpression("forbidden", "an exponent has to be a whole number")
        case ast.Pow() if not left and right < 0:
            raise UnfitExpression("division_by_zero", "zero to a negative power")
        case ast.Pow():
            # powers of 0, 1 and -1 stay as they are, however large the exponent
            bits = 0 if abs(left) in (0, 1) else abs(right.numerator) * max(a, b)
        case ast.Mult():
            bits = max(a + c, b + d)
        case ast.Div():
            bits = max(a + d, b + c)
        case _:  # + - // % bring both sides to one denominator
            bits = max(a + d, c + b, b + d) + 1
    if bits > MAX_BITS:
        raise UnfitExpression("too_large", f"a result that may take more than {MAX_BITS} bits")
