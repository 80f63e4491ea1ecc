"""What every verifier is: built in, a function of the user's, or a service."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rl.records import Instructions, Problem, Verdict


class Verifier(Protocol):
    """Judges completions. Its system prompt and its check of a problem are known without it: `Declared`."""

    @property
    def about(self) -> str:
        """A note for people on how it runs here, or nothing."""

    def judge(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        """A verdict on each completion of the problem beside it, failures included."""

    def warm(self) -> None:
        """Have it ready. Raises ValueError, one line, if it cannot work."""

    def close(self) -> None:
        """Release its processes and connections."""


def accept(problem: Problem) -> None:
    """The check of a verifier that accepts any problem."""


@dataclass(frozen=True)
class Declared:
    """What is known of a verifier by its name. Each file of `rl.verifiers.built_in` declares its own, as VERIFIER."""

    instructions: Instructions | None = None  # None: the problems say what they want
    tokens: int = 512  # of an answer that does what the instructions ask for; what is longer is cut
    check: Callable[[Problem], None] = accept  # raises ValueError for a problem that it cannot judge
    example: Callable[[Problem], str] | None = None  # a right completion; none where the target is one
    # one of these two, in what is built in
    verify: Callable[[Problem, str], Verdict] | None = None  # exact and bounded: it runs in the process that asks
    module: str = ""  # whose function `reward` runs in a process that can be killed
    package: str = ""  # that it imports and a machine may lack; the extra of its name installs it
    built_in: bool = True  # it has targets, and takes the answer from the end of a completion


def _unjudged(_problem: Problem, _completion: str) -> Verdict:
    """Nothing but the reward model's score counts, which is added where a worker with that model has computed it."""
    return Verdict(0.0, "scored")


MODEL = Declared(built_in=False, verify=_unjudged)
FUNCTION = Declared(built_in=False)
SERVICE = Declared(built_in=False)
