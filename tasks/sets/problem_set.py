"""A problem set: what to train on, step by step, and what is kept out of training."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any

from rl.config import PLAYED, ProblemsConfig, VerifierConfig, is_in_code
from rl.environments.environment_config import EnvironmentConfig
from rl.environments.spec import EnvironmentSpec
from rl.problems import rows
from rl.problems.made import stream_of
from rl.problems.rows import asked, normalized
from rl.problems.tables import ProblemError
from rl.records import Problem
from rl.verifiers.spec import VerifierSpec
from tasks.sets.mixture import Draw, Mixture, Source, streams
from tasks.sets.named_set import NamedSet, judges, named_sets, open_environment, refuse_unplayed, set_name
from tasks.sets.trained_on import TrainedOn, prompts_of, seen_among

SINGLE = EnvironmentConfig()  # completions of one turn
LONGEST = 256  # problems of the files that are looked at for their length before a run


@dataclass(frozen=True)
class ProblemSet:
    """Problems of step k are a function of (seed, k) alone. A file's come in epochs: all of them once, in a random
    order, before any comes again."""

    name: str
    draw: Draw
    held_out: tuple[Problem, ...]  # shares no prompt with what ``draw`` gives, case and blanks aside
    verifiers: Mapping[str, VerifierSpec]  # by the name of the set that a problem is of

    played: tuple[str, ...] = ()  # the names of the sets that an environment is acted on with
    environment: EnvironmentSpec | None = None  # what is acted on, and gives these their rewards
    files: Mapping[str, TrainedOn] = field(default_factory=dict)  # by set: what its files give to ``draw``
    drawn: tuple[Problem, ...] = ()  # the problems of its files that ``draw`` gives
    before: frozenset[bytes] = frozenset()  # short digests of prompts that the policy was trained on before
    spared: int = 0  # problems of its files' training parts that are not drawn, as a prompt like theirs is held out
    left_out: int = 0  # problems that an evaluation passes over, as the policy was trained on them

    @property
    def judging(self) -> dict[str, VerifierSpec | EnvironmentSpec]:
        """What gives the rewards, by the name of the set."""
        played = {} if self.environment is None else dict.fromkeys(self.played, self.environment)
        return {**self.verifiers, **played}

    @property
    def judged_by(self) -> str:
        """The same, for people."""
        return judges(self.judging)

    @property
    def programs(self) -> list[VerifierSpec | EnvironmentSpec]:
        """The programs among them."""
        return [*self.verifiers.values(), *([] if self.environment is None else [self.environment])]

    @property
    def mixed(self) -> bool:
        """Whether there is more than one set."""
        return len(self.judging) > 1

    def some_played(self) -> list[Problem]:
        """One of each set that the environment is acted on with, to try it."""

        def all_of_them() -> Iterator[Problem]:
            yield from chain(self.held_out, self.drawn)
            for step in count():
                yield from self.draw(step, 64, 0)

        return [next(problem for problem in all_of_them() if problem.set == name) for name in self.played]

    @property
    def trained(self) -> frozenset[bytes]:
        """Short digests of the prompts of its files that ``draw`` gives, and of those before, for `seen_among`."""
        return prompts_of(self.files.values()) | self.before

    def longest(self) -> list[Problem]:
        """Problems among which is the longest prompt: the held-out ones, some of the first step, and those of the files
        with the most characters. Tokens are not counted, as that takes the tokenizer of the policy on its worker."""
        return [*self.some(), *longest(self.drawn)]

    def some(self) -> list[Problem]:
        """The held-out problems, and the first ones of step 0."""
        return [*self.held_out, *self.draw(0, 64, 0)]


def longest(given: Sequence[Problem]) -> list[Problem]:
    """Those with the most characters."""
    return sorted(given, key=lambda problem: len(problem.prompt), reverse=True)[:LONGEST]


def open_problems(
    sets: Sequence[ProblemsConfig],
    verifier: VerifierConfig,
    held_out: int | None,
    seed: int,
    prompts: int = 1,
    environment: EnvironmentConfig = SINGLE,
) -> ProblemSet:
    """The problems of the sets, mixed by weight.

    Args:
        held_out: problems of each set kept out of training, the same for every seed; None: as `rl.problems.rows.split`.
        prompts: how many a step draws at first; further ones replace some of them.

    Raises:
        ProblemError: a file that is missing, empty or broken, or too small to keep ``held_out`` of its problems out.
        VerifierError: a verifier that does not exist.
        EnvironmentSpecError: an environment that does not exist, or that none of the problems is played with.
    """
    refuse_unplayed(sets, environment)
    mixed = named_sets(sets, verifier, environment)
    split = {each.name: each.split(held_out) for each in mixed if not is_in_code(each.config.path)}
    made = _held_out_of_made(mixed, held_out)
    kept_out = {each.name: made[each.name] if each.name in made else split[each.name][1] for each in mixed}
    played = {each.name for each in mixed if each.config.path in PLAYED}  # other problems may have the same prompt
    kept = {normalized(asked(of)) for name, problems in kept_out.items() if name not in played for of in problems}
    sources: list[Source] = []
    out: list[Problem] = []
    files: dict[str, TrainedOn] = {}
    drawn: list[Problem] = []
    spared = 0
    for each, stream in zip(mixed, streams(seed, len(mixed)), strict=True):
        if is_in_code(each.config.path):
            sources.append(_made(each, stream, frozenset() if each.name in played else kept))
        else:
            # sets may share problems, and a file may have one twice, with another blank in it
            train = [problem for problem in split[each.name][0] if normalized(asked(problem)) not in kept]
            if not train:
                raise ProblemError(
                    f"{each.config.path}: nothing is left to train on: all of its prompts are held out, by it or by "
                    "another set (case and blanks do not count); choose a smaller --held_out"
                )
            sources.append(_from(train, stream, each.config.weight))
            files[each.name] = TrainedOn.of(split[each.name], train)
            drawn += train
            spared += len(split[each.name][0]) - len(train)
        out += kept_out[each.name]
    return ProblemSet(
        name=set_name(sets),
        draw=Mixture(sources, seed, prompts),
        held_out=tuple(out),
        verifiers=_verifiers(mixed),
        **_played(mixed, environment),
        files=files,
        drawn=tuple(drawn),
        spared=spared,
    )


def problems_to_solve(
    sets: Sequence[ProblemsConfig],
    verifier: VerifierConfig,
    held_out: int | None,
    seed: int,
    trained: Set[bytes] = frozenset(),
    made: int | None = None,
    environment: EnvironmentConfig = SINGLE,
) -> ProblemSet:
    """The problems of an evaluation, as the held-out part of a set. It need not be played with the environment.

    Args:
        held_out: as in training: the part that is kept out; 0: everything in the files; None: everything but the
            prompts in ``trained`` (short digests), in the order of a split.
        made: how many problems of a set that is made in code, from the side that is never trained on.

    Raises:
        ProblemError: as `open_problems`, or all of the problems are among ``trained``.
    """
    if all(each.judged for each in sets):
        environment = SINGLE
    if held_out:
        return open_problems(sets, verifier, held_out, seed, environment=environment)
    known = trained if held_out is None else frozenset()
    mixed = named_sets(sets, verifier, environment)
    whole = _held_out_of_made(mixed, made)
    whole |= {each.name: each.read() for each in mixed if not is_in_code(each.config.path)}
    seen = seen_among((problem for group in whole.values() for problem in group), known)
    found: list[Problem] = []
    left_out = 0
    for each in mixed:
        given = whole[each.name]
        # in the order of a split: whatever was trained on, the first ones are the same
        if held_out is None and not is_in_code(each.config.path):
            given, _ = rows.split(given, 0)
        unseen = [problem for problem in given if normalized(asked(problem)) not in seen]
        found += unseen
        left_out += len(given) - len(unseen)
    if not found:
        raise ProblemError(
            f"{set_name(sets)}: the policy was trained on all {left_out} problems; give others by --problems, or "
            "--held_out 0 to evaluate on those"
        )
    return ProblemSet(
        set_name(sets),
        lambda *_: [],
        tuple(found),
        _verifiers(mixed),
        **_played([each for each in mixed if any(problem.set == each.name for problem in found)], environment),
        left_out=left_out,
    )


def _played(mixed: Sequence[NamedSet], environment: EnvironmentConfig) -> dict[str, Any]:
    """The fields of a problem set that tell what is acted on."""
    played = tuple(each.name for each in mixed if each.verifier is None)
    return {"played": played, "environment": open_environment(environment)} if played else {}


def _verifiers(mixed: Sequence[NamedSet]) -> dict[str, VerifierSpec]:
    return {each.name: each.verifier for each in mixed if each.verifier is not None}


def _held_out_of_made(mixed: Sequence[NamedSet], count: int | None) -> dict[str, list[Problem]]:
    """``count`` problems of each set that is made in code, by its name; one that is there twice has others then. Those
    of an environment differ by more than their prompts, which may all be one."""
    found: dict[str, list[Problem]] = {}
    taken: dict[str, set[str]] = {}
    for each in mixed:
        if is_in_code(each.config.path):
            there = taken.setdefault(each.config.path, set())
            found[each.name] = each.made(count, frozenset() if each.config.path in PLAYED else there)
            there |= {normalized(problem.prompt) for problem in found[each.name]}
    return found


def _made(each: NamedSet, stream: int, kept: Set[str]) -> Source:
    make = stream_of(each.config.path)

    def draw(step: int, _position: int, _own: int, count: int, skip: int) -> list[Problem]:
        free = (problem for problem in make(stream, step, "train") if normalized(problem.prompt) not in kept)
        return each.marked(list(islice(free, skip, skip + count)))

    return Source(each.config.weight, draw)


def _from(train: Sequence[Problem], stream: int, weight: float) -> Source:
    def draw(step: int, position: int, own: int, count: int, skip: int) -> list[Problem]:
        return rows.draw(train, stream, step, position, own, count, skip)

    return Source(weight, draw)
