"""A step as a graph of model calls: which calls an algorithm needs, and what each reads and writes.

The edges follow from the fields of `Batch` that a call reads and another one writes (as in ReaL's dataflow graphs,
arXiv 2406.14088, section 4). A call made for each lease begins with the first one of a step; one for the whole batch
when that is complete. Nothing here knows a cluster.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from rl.algorithms import Algorithm
from rl.records import Batch

GIVEN = ("problems",)  # what a step starts with
OUTCOMES = ("learned", "criticised")  # what is left of it
FIELDS = (*GIVEN, *(field.name for field in fields(Batch)), *OUTCOMES)


class GraphError(ValueError):
    """Calls that make no graph."""


@dataclass(frozen=True)
class Call:
    """Work of one kind of worker; `placement.<name>` says of which."""

    name: str
    model: str | None  # the role of the model that it runs; None where a program does
    reads: tuple[str, ...]  # names of FIELDS
    writes: tuple[str, ...]
    each: Literal["lease", "batch"]

    @property
    def trains(self) -> bool:
        """Whether it makes a new version of its model."""
        return bool(set(self.writes) & set(OUTCOMES))


GENERATE = Call("generate", "actor", ("problems",), ("rollouts",), "lease")
VERIFY = Call("verify", None, ("rollouts",), ("rewards", "reasons"), "lease")
REWARD = Call("reward", "reward", ("rollouts", "reasons"), ("rewards",), "lease")  # adds its scores to a program's
AUDIT = Call("audit", "actor", ("rollouts",), (), "lease")  # of some, whatever the algorithm: tells of their worker
SCORES = {  # by the field that an algorithm declares to need
    "baseline": Call("greedy", "actor", ("rollouts",), ("baseline",), "lease"),
    "reference_logprobs": Call("reference", "reference", ("rollouts",), ("reference_logprobs",), "lease"),
    "values": Call("value", "critic", ("rollouts",), ("values",), "lease"),
}


class Graph:
    """Calls in an order in which each comes after those that write what it reads."""

    def __init__(self, calls: Iterable[Call]) -> None:
        """Raises GraphError, naming the call and the field, for a name that is none of `FIELDS`, a field that nobody
        or more than one call writes, and a cycle."""
        given = tuple(calls)
        self._writers = _writers(given)
        for call in given:
            for name in call.reads:
                _check_name(call, name)
                if name not in GIVEN and name not in self._writers:
                    raise GraphError(f"{call.name} reads {name}, which no call writes")
        by_name = {call.name: call for call in given}
        try:
            order = tuple(TopologicalSorter({call.name: self.before(call) for call in given}).static_order())
        except CycleError as error:
            raise GraphError(f"the calls wait for each other: {' → '.join(error.args[1])}") from None
        self.calls = tuple(by_name[name] for name in order)

    def before(self, call: Call) -> tuple[str, ...]:
        """Names of the calls that write what this one reads."""
        return tuple(dict.fromkeys(self._writers[name].name for name in call.reads if name in self._writers))

    @property
    def scores(self) -> tuple[Call, ...]:
        """The calls that are made of each lease beside its verification."""
        return tuple(call for call in self.calls if call in SCORES.values())

    @property
    def models(self) -> tuple[str, ...]:
        """The roles of its models."""
        return tuple(dict.fromkeys(call.model for call in self.calls if call.model is not None))


def graph_of(algorithm: Algorithm, needs: Iterable[str] = (), *, reward_model: bool = False) -> Graph:
    """The calls of a step of this algorithm, and of whatever else needs these fields. Raises GraphError for one that no
    call makes."""
    needed = sorted({*algorithm.needs, *needs})
    if unknown := [name for name in needed if name not in SCORES]:
        near = get_close_matches(unknown[0], SCORES, n=1, cutoff=0)[0]
        raise GraphError(f"needs {unknown[0]!r}, which no call makes; did you mean {near}?")
    read = ("rollouts", "rewards", *needed)
    judging = [replace(VERIFY, writes=("reasons",)), REWARD] if reward_model else [VERIFY]
    scores = [SCORES[name] for name in needed]
    calls = [GENERATE, *judging, *scores, Call("train", "actor", read, ("learned",), "batch")]
    if "values" in needed:
        calls.append(Call("train_critic", "critic", read, ("criticised",), "batch"))
    return Graph(calls)


def _writers(calls: Iterable[Call]) -> Mapping[str, Call]:
    writers: dict[str, Call] = {}
    names = set[str]()
    for call in calls:
        if call.name in names:
            raise GraphError(f"two calls are named {call.name}")
        names.add(call.name)
        for name in call.writes:
            _check_name(call, name)
            if name in writers:
                raise GraphError(f"{name} is written by {writers[name].name} and by {call.name}")
            writers[name] = call
    return writers


def _check_name(call: Call, name: str) -> None:
    if name not in FIELDS:
        near = get_close_matches(name, FIELDS, n=1, cutoff=0)[0]
        raise GraphError(f"{call.name} names {name!r}, which is no field of a batch; did you mean {near}?")
