"""Judging as a call on a verifier. It imports no prefect and no torch: a verifier starts fast and stays small."""

from collections.abc import Mapping, Sequence

from infra.home import rlvf_home
from rl import judging
from rl.judging import Judgement
from rl.records import Problem
from rl.verifiers.spec import VerifierSpec


def judge(
    problems: Sequence[Problem], completions: Sequence[Sequence[str]], verifiers: Mapping[str, VerifierSpec]
) -> Judgement:
    """Judge G completions for each of P problems, with this machine's certificates where a service wants them."""
    return judging.judge(problems, completions, verifiers, rlvf_home())


def warm(verifiers: Mapping[str, VerifierSpec], problems: Sequence[Problem] = ()) -> tuple[str, ...]:
    """Try each verifier on this machine with one problem of its set; returns notes for a person. Raises VerifierError
    for one that cannot work here."""
    return judging.warm(verifiers, problems, rlvf_home())
