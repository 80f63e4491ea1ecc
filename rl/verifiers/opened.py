"""Verifiers as this process holds them: opened at their first call and kept, with their processes and connections."""

import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from rl.records import Problem, Verdict
from rl.verifiers.isolation import sandbox
from rl.verifiers.isolation.pool import Pool, failed
from rl.verifiers.isolation.process import Cell
from rl.verifiers.spec import BUILT_IN, MATH, VerifierError, VerifierSpec

KEPT = 4  # a user who edits a file makes a new verifier each time


class Verifier(Protocol):
    """Judges completions."""

    @property
    def about(self) -> str:
        """What a person should know of how it runs here; nothing where there is nothing."""

    def judge(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        """A verdict on each completion of the problem beside it, failures included."""

    def warm(self) -> None:
        """Raise ValueError, one line, if it cannot work."""

    def close(self) -> None:
        """Let go of what it holds."""


class BuiltIn:
    """A verifier that is exact and bounded, so that it runs here."""

    def __init__(self, name: str) -> None:
        self._verify = BUILT_IN[name].verify
        self.about = ""

    def judge(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        return [self._one(problem, text) for problem, text in zip(problems, completions, strict=True)]

    def warm(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _one(self, problem: Problem, completion: str) -> Verdict:
        try:
            verdict: Verdict = self._verify(problem, completion)
        except ValueError as error:  # a broken problem
            return failed("broken_problem", f"{problem.source}: {error}")
        return verdict


_kept: dict[VerifierSpec, Verifier] = {}
_lock = threading.Lock()


def opened(spec: VerifierSpec, home: Path | None = None) -> Verifier:
    """The verifier of this process; ``home`` is rlvf's on this machine, with its certificates and logs.

    Raises VerifierError where it cannot be opened here.
    """
    with _lock:
        verifier = _kept.pop(spec, None) or _open(spec, home)
        _kept[spec] = verifier  # the last one used is the last one to go
        while len(_kept) > KEPT:
            _kept.pop(next(iter(_kept))).close()
        return verifier


def _open(spec: VerifierSpec, home: Path | None) -> Verifier:
    if spec.name in BUILT_IN:
        return BuiltIn(spec.name)
    if spec.is_service:
        from rl.verifiers.service import Service

        return Service(spec.name, spec.seconds, home / "certs" if home is not None else None)
    cell = Cell(
        sandbox=sandbox.chosen(spec.sandbox),
        network=spec.network,
        env=spec.env,
        hidden=sandbox.hidden(home),
        log=home / "logs" / f"verifier-{Path(spec.file).stem}.log" if home is not None and spec.name != MATH else None,
    )
    if spec.name == MATH:
        require_math()
        text = Path(__file__).with_name("symbolic.py").read_text("utf-8")
        return Pool(text, "symbolic.py", "reward", spec.seconds, spec.memory_mb, cell=cell)
    return Pool(spec.text, spec.file, spec.function, spec.seconds, spec.memory_mb, cell=cell)


def require_math() -> None:
    """Raise VerifierError unless math-verify is installed."""
    if find_spec("math_verify") is None:
        raise VerifierError("verifier 'math' needs math-verify: pip install 'rlvf[math]', on the verifiers too")
