"""Verifier `arithmetic`: the completion, as `reading.written` reads it, is an expression with exactly the target's
value. Its reasons, and those of the other verifiers here, are in docs/verifiers.md."""

from rl.arithmetic import UnfitExpression, evaluate
from rl.records import Instructions, Problem, Verdict
from rl.verifiers.contract import Declared
from rl.verifiers.reading.written import WrongEquation, answered, expression, fenced

INSTRUCTIONS = Instructions(
    "Turn the problem into one Python arithmetic expression. Answer with the expression alone, nothing else.",
    (("double 7, add 3 and 5 to it, then divide by 11.", "(2 * 7 + 3 + 5) / 11"),),
)


def check(problem: Problem) -> None:
    """Raise ValueError unless the target has a value."""
    try:
        evaluate(problem.target)
    except UnfitExpression as unfit:
        other = "; is --verifier gsm8k meant?" if "####" in problem.target else ""
        raise ValueError(f"cannot be evaluated ({unfit}){other}") from unfit


def verify(problem: Problem, completion: str) -> Verdict:
    """Reward 1 if the completion has exactly the target's value, else 0.

    Raises ValueError if the target itself has no value: a broken problem is an error, not a wrong answer.
    """
    try:
        wanted = evaluate(problem.target)
    except UnfitExpression as unfit:
        raise ValueError(f"the target {problem.target[:80]!r} cannot be evaluated ({unfit})") from unfit
    try:
        value = evaluate(expression(fenced(answered(completion))))
    except UnfitExpression as unfit:
        return Verdict(reward=0.0, reason=unfit.reason)
    except WrongEquation:
        return Verdict(reward=0.0, reason="wrong_equation")
    return Verdict(reward=1.0, reason="right") if value == wanted else Verdict(reward=0.0, reason="wrong_value")


VERIFIER = Declared(INSTRUCTIONS, tokens=64, check=check, verify=verify)
