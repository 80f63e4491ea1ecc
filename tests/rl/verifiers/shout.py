"""Verifier `shout`: the completion is the target, in capitals."""

from rl.records import Instructions, Problem, Verdict
from rl.verifiers.contract import Declared


def check(problem: Problem) -> None:
    if not problem.target:
        raise ValueError("is empty")


def verify(problem: Problem, completion: str) -> Verdict:
    right = completion == problem.target.upper()
    return Verdict(float(right), "right" if right else "quiet")


VERIFIER = Declared(Instructions("Shout."), tokens=16, check=check, verify=verify)
