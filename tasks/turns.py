"""Episodes of an environment, turn by turn: what generators have drawn is acted on by verifiers, and any generator goes
on with what is observed.

Legend: P problems, G completions per problem.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import ceil
from queue import SimpleQueue

from infra.dispatch.dispatch import Dispatch
from infra.dispatch.probe import each_well
from rl.admission import refused_judgement, refused_outcomes, telling
from rl.environments.episode import Episode, Outcome
from rl.environments.interface import Interface
from rl.environments.spec import EnvironmentSpec
from rl.environments.turn import of_json
from rl.judging import Judgement
from rl.records import Problem, Rollouts
from tasks.batch.lease import Lease, Slice
from tasks.batch.slices import Slices
from tasks.calls.episodes import judge_episodes, play, try_environment
from tasks.calls.generator import Generator

AT_ONCE = 256  # leases whose turns are acted on, or that are gone on with, at once
LATELY = 2.0  # seconds since the workers were counted that episodes are spread over
Observed = tuple[tuple[str, ...], ...]  # [P * G] of each completion that goes on; () of the others


def check_environment(dispatch: Dispatch, spec: EnvironmentSpec, problems: Sequence[Problem]) -> Interface:
    """Try the environment on the workers that would play it, with these problems; one on which it cannot be used is
    left out. Raises EnvironmentSpecError where it can on none."""
    return each_well(dispatch, "verify", try_environment, spec, problems)[0]


@dataclass(frozen=True)
class Episodes:
    """The episodes of some leases. Any thread may call it, each for leases of its own."""

    dispatch: Dispatch
    spec: EnvironmentSpec
    name: str  # before the number of a group: what random numbers are named by
    samples: int  # G
    order: tuple[int, ...] = ()  # of its calls, as in `Dispatch.lease`
    refused: Callable[[str], object] = lambda _: None  # gets why a worker's result is not taken
    _of: dict[int, list[Episode]] = field(default_factory=dict)  # [G] by the number of the group

    def begin(self, leases: Sequence[Lease]) -> list[Lease]:
        """The same leases; what an episode begins with is their problems' `opening`. It is the same for all of a group,
        which has one prompt. One of a problem that is not played never begins: it is what is said to the prompt."""
        groups = {
            group: problem for lease in leases for group, problem in zip(lease.groups, lease.problems, strict=True)
        }
        seeds = {group: f"{self.name}.{group}" for group in groups}
        played = [group for group, problem in groups.items() if problem.played]
        begun = self._played([Episode(f"{seeds[group]}.0", groups[group], seeds[group]) for group in played])
        openings = dict(zip(played, begun, strict=True))
        said = {}
        for group, problem in groups.items():
            opening = openings.get(group)
            self._of[group] = [
                Episode(f"{seeds[group]}.{sample}", problem, seeds[group], opening) for sample in range(self.samples)
            ]
            said[group] = "".join(() if opening is None else opening.observations)
        return [
            replace(
                lease,
                problems=tuple(
                    replace(problem, opening=said[group])
                    for group, problem in zip(lease.groups, lease.problems, strict=True)
                ),
            )
            for lease in leases
        ]

    def of(self, lease: Lease) -> tuple[Episode, ...]:
        """[P * G] those of a lease."""
        return tuple(episode for group in lease.groups for episode in self._of[group])

    def texts(self, lease: Lease) -> tuple[tuple[str, ...], ...]:
        """[P] of [G] what was said and observed in each, a line break between."""
        return tuple(
            tuple("\n".join(message["content"] for message in episode.messages) for episode in self._of[group])
            for group in lease.groups
        )

    def after(self, lease: Lease, rollouts: Rollouts, limit: int) -> Observed:
        """Act on what the turns of a lease have asked for since the last call. What is observed, of completions that go
        on: those that have room for more tokens, up to ``limit``, and whose episodes are not over."""
        actions = [action for row in rollouts.actions for action in row]
        said = zip(self.of(lease), actions, (text for row in rollouts.texts for text in row), strict=True)
        episodes = [episode.saying(text) if action or text else episode for episode, action, text in said]
        asked = [at for at, action in enumerate(actions) if action and not self._is_over(episodes[at])]
        outcomes = self._played([episodes[at] for at in asked], [actions[at] for at in asked])
        for at, outcome in zip(asked, outcomes, strict=True):
            episodes[at] = episodes[at].after(of_json(actions[at]), outcome)
        for row, group in enumerate(lease.groups):
            self._of[group] = episodes[row * self.samples : (row + 1) * self.samples]
        lengths = rollouts.lengths.ravel()
        going_on = {at for at in asked if not self._is_over(episodes[at]) and lengths[at] < limit}
        return tuple(
            (episodes[at].turns[-1][1].observations or ("",)) if at in going_on else () for at in range(len(episodes))
        )

    def _is_over(self, episode: Episode) -> bool:
        return episode.over or len(episode.turns) >= self.spec.limits.turns

    def _played(self, episodes: Sequence[Episode], actions: Sequence[str] | None = None) -> list[Outcome]:
        """The outcome of an action for each, or of reset, spread over the verifiers."""
        parts = [
            (self.spec, episodes[at], [None] * len(episodes[at]) if actions is None else actions[at])
            for at in _shares(self.dispatch, len(episodes))
        ]

        def check(part: int, returned: list[Outcome]) -> str:
            return telling(self.refused, refused_outcomes(returned, len(parts[part][1])))

        found = dict(self.dispatch.lease("verify", play, parts, order=self.order, check=check))
        return [outcome for part in range(len(parts)) for outcome in found[part]]


def judged_episodes(
    dispatch: Dispatch,
    spec: EnvironmentSpec,
    episodes: Sequence[Episode],
    samples: int,
    *,
    order: tuple[int, ...] = (),
    refused: Callable[[str], object] = lambda _: None,
) -> Judgement:
    """The rewards of episodes [P * G], spread over the verifiers."""
    parts = [
        (spec, episodes[share.start * samples : share.stop * samples], samples)
        for share in _shares(dispatch, len(episodes) // samples)
    ]

    def check(part: int, returned: Judgement) -> str:
        return telling(refused, refused_judgement(returned, len(parts[part][1]) // samples, samples))

    found = dict(dispatch.lease("verify", judge_episodes, parts, order=order, check=check))
    return Judgement.join([found[part] for part in range(len(parts))])


def _shares(dispatch: Dispatch, count: int) -> Iterator[slice]:
    share = max(1, ceil(count / max(1, len(dispatch.offers("verify", lately=LATELY)))))
    return (slice(at, min(at + share, count)) for at in range(0, count, share))


def episodes_of(
    dispatch: Dispatch,
    spec: EnvironmentSpec | None,
    generator: Generator,
    step: int,
    order: tuple[int, ...],
    refused: Callable[[str], object],
) -> Episodes | None:
    """Those of what a generator draws at a step; None without an environment."""
    if spec is None:
        return None
    name = f"{generator.seed}.{step}{'.greedy' if generator.greedy else ''}"
    return Episodes(dispatch, spec, name, generator.samples, order, refused)


Made = Callable[[Iterable[int], tuple[int, ...]], Iterator[int]]


def in_turns(slices: Slices, episodes: Episodes, made: Made) -> Iterator[tuple[Lease, Rollouts, tuple[Slice, ...]]]:
    """The leases of ``slices`` once their episodes are over, as they are. ``made(indices, order)`` has a turn of these
    leases drawn, and yields each that is done; a lease that goes on comes before those that nobody has begun."""
    limit = slices.generator.sampling.limit
    over: SimpleQueue[int | BaseException] = SimpleQueue()
    threads = ThreadPoolExecutor(AT_ONCE, "turns")
    held: dict[int, tuple[Rollouts, tuple[Slice, ...]]] = {}

    def go_on(index: int) -> None:
        try:
            while True:
                rollouts, parts = slices.whole(index)
                observed = episodes.after(slices.leases[index], rollouts, limit)
                if not any(observed):
                    break
                slices.go_on(index, rollouts, parts, observed)
                for _ in made([index], (-1, slices.leases[index].groups.start)):
                    pass
            held[index] = replace(rollouts, actions=(), texts=episodes.texts(slices.leases[index])), parts
            over.put(index)
        except BaseException as error:  # noqa: BLE001 - raised where the leases are asked for
            over.put(error)

    def begin() -> None:
        try:
            for index in made(range(len(slices.leases)), (slices.leases[0].groups.start,)):
                threads.submit(go_on, index)
        except BaseException as error:  # noqa: BLE001
            over.put(error)

    groups = sum(len(lease.groups) for lease in slices.leases)  # however they are cut
    threads.submit(begin)
    try:
        while groups:
            index = over.get()
            if isinstance(index, BaseException):
                raise index
            groups -= len(slices.leases[index].groups)
            yield slices.leases[index], *held.pop(index)
    finally:
        threads.shutdown(wait=False)
