"""What runs say would help them, against runs that have it: a local cluster, whose workers are slowed.

Each row is a run, the step that it predicts with one change, and the step of a run with that change: one more
generator; staleness 1 in place of 0; a trainer twice as fast; and the fewest generators that keep the trainer busy,
with which a step should be as long as it was. `predicted` is what the run says, whose new worker has a machine of its
own. `here` is the same for the cores that there are, with the load by other programs that the run with the change had:
no forecast, but all that a bench on one machine can check.

Workers are stopped for as long as they have computed, times something (`tests.bench.plan`), so that what they compute
takes longer and leaves the cores to the others. All run in one cluster, in turns; figures are medians over the turns.
On a quiet machine with two cores it should take some six minutes.

python -m tests.bench.limits [--steps 12] [--turns 2] [--only NAME] [--json]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from pathlib import Path
from statistics import median

from flows.commands.workplace import in_workplace
from flows.config import TrainConfig
from flows.planner.calls import graph_of_config
from flows.planner.limits import LAST, Limit, limit_of
from flows.planner.measured import measured_step
from flows.run.workplace import Workplace, open_workplace
from infra.cluster.placement import WORKER, PlacementConfig, offers
from infra.planning.limits import Change, Kind, changed
from infra.planning.simulation import simulate
from tests.bench.plan import recorded, slowed

ONE, OTHER = "generator-0", "generator-1"
SLOW = 3.0  # times as long as it takes
ALLOWED = 0.15  # share by which a prediction may be off


@dataclass(frozen=True)
class Setting:
    """How a run is made."""

    generate: tuple[str, ...] = (ONE,)
    staleness: int = 1
    slow: Mapping[str, float] = field(default_factory=dict)  # workers, and how many times as long they take


@dataclass(frozen=True)
class Case:
    """A run, a change that it predicts, and the run that has it."""

    before: Setting
    kind: Kind | None  # of the change; None: fewer generators, without harm
    after: Setting


GENERATORS = {ONE: SLOW, OTHER: SLOW}
CASES: Mapping[str, Case] = {
    "one more generator": Case(Setting(slow=GENERATORS), "worker", Setting((ONE, OTHER), slow=GENERATORS)),
    "staleness": Case(Setting(staleness=0), "staleness", Setting(staleness=1)),
    "a faster trainer": Case(Setting(slow={"trainer": 2 * SLOW}), "trainer", Setting(slow={"trainer": SLOW})),
    "fewer generators": Case(
        Setting((ONE, OTHER), slow={"trainer": SLOW}), None, Setting((ONE,), slow={"trainer": SLOW})
    ),
}


@dataclass(frozen=True)
class Figure:
    """A step of one case, in seconds."""

    case: str
    before: float
    predicted: float
    here: float  # predicted for the cores and the load that there were
    measured: float
    explained: bool  # whether the run before would have said it
    said: str

    @property
    def off(self) -> float:
        """By which share the prediction is wrong, for the cores and the load that there were."""
        return self.here / self.measured - 1


def settings(folder: Path) -> TrainConfig:
    """What is trained: all steps are alike, see `tests.bench.plan`."""
    verifier = folder / "parity.py"
    verifier.write_text("def reward(problem, completion):\n    return float(len(completion) % 2)\n")
    return TrainConfig.model_validate(
        {
            "verifier": f"{verifier}:reward",
            "optimizer": {"lr": 1e-8},
            "held_out": 0,
            "audit": {"share": 0},
            "batch": {"prompts": 32, "samples": 8, "lease": 4, "oversample": 1},
            "cluster": {"generators": 2, "threads": 1},
            "tracking": {"report": False, "system_metrics": False, "rollouts_every": 0},
            "warm_up": {"steps": 5},
        }
    )


def limit(workplace: Workplace, config: TrainConfig, setting: Setting, steps: int) -> Limit:
    """What a run of this setting says of itself."""
    placement = PlacementConfig.model_validate({"generate": [f"{WORKER}{each}" for each in setting.generate]})
    given = {"placement": placement, "staleness": setting.staleness, "steps": steps, "run": f"limits-{time.time_ns()}"}
    client = workplace.dispatch.client
    pids: dict[str, int] = client.run(os.getpid)
    with ExitStack() as stack:
        for offer in offers(client):
            if offer.name in setting.slow:
                stack.enter_context(slowed(pids[offer.address], setting.slow[offer.name]))
        record, uri = recorded(workplace, config.model_copy(update=given))
    step = measured_step(record, uri, LAST)
    found = limit_of(graph_of_config(config.algorithm, step.calls), step, setting.staleness)
    if found is None:
        raise ValueError(f"--steps {steps}: too few for a run to say anything")
    return found


def measure(
    workplace: Workplace,
    config: TrainConfig,
    cases: Mapping[str, Case],
    steps: int,
    turns: int,
    say: Callable[[str], None],
) -> list[Figure]:
    """The figures of each case."""
    before: dict[str, list[Limit]] = defaultdict(list)
    after: dict[str, list[Limit]] = defaultdict(list)
    for turn in range(turns):
        for name, case in cases.items():
            before[name].append(limit(workplace, config, case.before, steps))
            say(f"turn {turn + 1}, {name}: {before[name][-1].step.seconds:.2f} s; {before[name][-1].words()}")
            after[name].append(limit(workplace, config, case.after, steps))
            say(f"turn {turn + 1}, {name}, with it: {after[name][-1].step.seconds:.2f} s")
    return [
        Figure(
            name,
            median(each.step.seconds for each in before[name]),
            median(each.step.seconds / gain(each, case.kind) for each in before[name]),
            median(here(*each, case.kind) for each in zip(before[name], after[name], strict=True)),
            median(each.step.seconds for each in after[name]),
            all(each.explained for each in before[name]),
            before[name][-1].words(),
        )
        for name, case in cases.items()
    ]


def gain(said: Limit, kind: Kind | None) -> float:
    """How many times shorter this change is said to make a step."""
    if kind is None:
        return 1.0 if len(said.found.fewest) == 1 else float("nan")
    return named(said, kind).gain


def named(said: Limit, kind: Kind) -> Change:
    """The change of this kind."""
    return next(one for one in said.found.changes if one.kind == kind and one.call in ("", "generate", "train"))


def here(before: Limit, after: Limit, kind: Kind | None) -> float:
    """The step that is predicted for the cores and the load of the run with the change."""
    costs = replace(before.costs, others=after.step.others)
    places, staleness = before.places, before.staleness
    if kind is None:
        if len(before.found.fewest) != 1:
            return float("nan")
        places = {**places, "generate": before.found.fewest}
    else:
        costs, places, staleness = changed(named(before, kind), costs, places, staleness)
        (machine,) = set(before.costs.machine.values())
        costs = replace(costs, machine=dict.fromkeys(costs.workers, machine))
    return before.step.seconds * simulate(costs, places, staleness).seconds / before.found.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if given.only in (None, name)}
    with tempfile.TemporaryDirectory() as folder:
        config = settings(Path(folder))

        def work(_: object) -> list[Figure]:
            with open_workplace(config.cluster, config.placement) as workplace:
                return measure(
                    workplace,
                    config,
                    cases,
                    given.steps,
                    given.turns,
                    lambda line: print(line, file=sys.stderr, flush=True),
                )

        figures = in_workplace(config.cluster, config.placement, work)
    if given.json:
        print(json.dumps([{**asdict(each), "off": each.off} for each in figures]))
        return
    for each in figures:
        kept = "" if each.explained else "   (not said: its calls do not explain its steps)"
        off = "" if abs(each.off) <= ALLOWED else f"   more than {ALLOWED:.0%} off"
        near = "   it was not found" if isnan(each.off) else off
        print(
            f"{each.case:20s} before {each.before:6.2f} s   predicted {each.predicted:6.2f} s   "
            f"here {each.here:6.2f} s {each.off:+5.0%}   "
            f"measured {each.measured:6.2f} s{near}{kept}"
        )


if __name__ == "__main__":
    main()
