r"""Verifier `math`, see `rl.verifiers.symbolic`, which is imported where it judges alone: sympy takes a second."""

from rl.records import Briefing
from rl.verifiers.contract import Declared

VERIFIER = Declared(
    Briefing(r"Think step by step. End with the answer in \boxed{}."),
    tokens=1024,
    module="rl.verifiers.symbolic",
    package="math_verify",
)
