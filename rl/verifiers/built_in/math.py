r"""Verifier `math`, see `reading.symbolic`, which is imported where it judges alone: sympy takes a second."""

from rl.records import Instructions
from rl.verifiers.contract import Declared
from rl.verifiers.reading.targets import asked, check

VERIFIER = Declared(
    Instructions(r"Think step by step. End with the answer in \boxed{}."),
    tokens=1024,
    check=check,
    example=lambda problem: rf"\boxed{{{asked(problem.target)}}}",
    module="rl.verifiers.reading.symbolic",
    package="math_verify",
)
