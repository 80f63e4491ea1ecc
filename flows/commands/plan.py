"""`rlvf plan`."""

import argparse
import json
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from flows.commands.command import Command, say
from flows.commands.named_run import named_run
from flows.config import TrainConfig
from flows.options.reading import add_options, read_config
from flows.planner.applied import apply_to_file, apply_to_run, settings, written
from flows.planner.drawing import graph_of_config
from flows.planner.measured import MeasuredStep, measured_step
from flows.planner.memory import memory, sizes
from flows.planner.proposal import Proposal, propose
from flows.start.runs import local_folder
from flows.start.saved import saved_config
from infra.cluster.costs import Places
from infra.home import rlvf_home
from infra.interrupts import put_off
from infra.runs.record import Record, read_record
from infra.security.printable import printable
from infra.storage.lock import RunInUseError, held

EXAMPLES = """
rlvf plan --run newest                                 where the calls of that run should run, and why
rlvf plan --run newest --most_stale 2 --apply          and change its settings: rlvf train --resume goes on with them
rlvf plan --probe --cluster.scheduler tls://10.0.0.5:8786   measure each call on each worker first, by a few steps
rlvf plan --probe --config my.yaml --apply             write what is found into my.yaml
"""
FIRST = ("run", "probe", "most_stale", "apply", "config", "json", "cluster.scheduler")


def _options(command: argparse.ArgumentParser) -> None:
    add_options(command, TrainConfig)
    # a probe is named by itself, so `--run` is free for another meaning
    runs = command.add_argument_group("runs", conflict_handler="resolve")
    runs.add_argument(
        "--run",
        metavar="RUN",
        action="append",
        help="a run's URI, its folder's name, or newest; further ones add what they measured on other workers",
    )
    command.add_argument("--probe", action="store_true", help="train a few steps on each worker that can, and measure")
    command.add_argument(
        "--most_stale", metavar="N", type=int, help="look at a staleness of up to N too (default: that of now)"
    )
    command.add_argument("--apply", action="store_true", help="write it into --config, else into the run's settings")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _run(given: argparse.Namespace) -> None:
    if bool(given.run) == given.probe:
        raise ValueError("name a run that has trained (--run newest), or measure with --probe: one of both")
    if given.probe:
        if given.apply and given.config is None:
            raise ValueError("--apply: name the file to write with --config FILE.yaml, as probes belong to no run")
        config = read_config(TrainConfig, file=given.config, overrides=given.overrides)
        uris, probed = _probe(config)
    else:
        if given.overrides:
            raise ValueError(f"--{next(iter(given.overrides))}: a run has its own settings; leave it out, or --probe")
        uris, probed = [named_run(name) for name in given.run], None
        config = saved_config(uris[0])
    records = [read_record(uri, local_folder(uri, rlvf_home())) for uri in uris]
    steps = [measured_step(record, uri) for record, uri in zip(records, uris, strict=True)]
    found = _proposal(config, records, steps, probed, given.most_stale)
    changes = settings(found.changes)
    where = None
    if given.apply and changes:
        where = (
            _applied(uris[0], changes)
            if given.config is None
            else apply_to_file(Path(given.config).expanduser(), changes)
        )
    print(json.dumps(_as_json(found, where)) if given.json else printable(_words(found, where), lines=True))


def _applied(uri: str, changes: Mapping[str, object]) -> str:
    """Write them into the run's settings, which nobody trains by meanwhile; returns where."""
    try:
        with held(uri, say):
            return apply_to_run(uri, saved_config(uri), changes)  # it may have gone on since it was read
    except RunInUseError as error:
        raise ValueError(f"--apply: {error}; or write a file with --config FILE.yaml") from None


def _proposal(
    config: TrainConfig, records: list[Record], steps: list[MeasuredStep], probed: Places | None, most: int | None
) -> Proposal:
    graph = graph_of_config(config.algorithm, steps[0].calls)
    room = {name: size for record in records for name, size in memory(record).items()}
    staleness = range(config.staleness + 1, 1 + (config.staleness if most is None else most))
    return propose(
        graph,
        config,
        steps[0],
        size=sizes(graph, records[0]),
        memory=room,
        others=steps[1:],
        staleness=staleness,
        probed=probed,
    )


def _probe(config: TrainConfig) -> tuple[list[str], Places]:
    """The URIs of the probes, and the placement of now."""
    with put_off():
        from flows.planner.probe import made, places_by_tags, probes, tags_of_workers  # with Dask

    tags = tags_of_workers(config.cluster)
    name = f"probe-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    uris = []
    for probe in probes(config, tags, name):
        say(f"{probe.run}: {probe.steps} steps")
        uris.append(made(probe))
    say(f"the probes stay, for other questions: rlvf plan {' '.join(f'--run {shlex.quote(uri)}' for uri in uris)}")
    graph = graph_of_config(config.algorithm)
    return uris, places_by_tags(config.placement, tags, [call.name for call in graph.calls])


def _words(found: Proposal, where: str | None) -> str:
    how = "simulated" if found.measured is None else "measured"
    rows = [f"now        {found.now:.3g} s a step ({how}); {found.bottleneck} is the bottleneck"]
    rows += [f"           {worker} busy {share:.0%}" for worker, share in _busiest_first(found.busy)]
    if not found.changes:
        rows.append("plan       none is better by more than 2%: it stays")
    else:
        shares = {worker: seconds / found.best.seconds for worker, seconds in found.best.busy.items()}
        rows.append(
            f"plan       {found.seconds:.3g} s a step (predicted), {found.now / found.seconds:.2f} times faster; then "
            f"{found.best.bottleneck} is the bottleneck"
        )
        rows += [f"           {worker} busy {share:.0%}" for worker, share in _busiest_first(shares)]
        for change in found.changes:
            options = " ".join(written(path, value) for path, value in change.options.items())
            rows.append(f"set        {options}   ({change.gain:.2f} times)")
    if found.unknown:
        rows.append(f"unknown    {'; '.join(found.unknown)}: not measured, so not planned with (rlvf plan --probe)")
    if where is not None:
        rows.append(f"written    {where}")
    return "\n".join(rows)


def _busiest_first(shares: dict[str, float] | object) -> list[tuple[str, float]]:
    assert isinstance(shares, dict)
    return sorted(shares.items(), key=lambda one: -one[1])


def _as_json(found: Proposal, where: str | None) -> dict[str, object]:
    return {
        "step_seconds": found.now,
        "measured": found.measured is not None,
        "planned_seconds": found.seconds,
        "bottleneck": found.bottleneck,
        "busy": dict(found.busy),
        "places": found.best.places,
        "changes": [{"options": dict(each.options), "gain": each.gain} for each in found.changes],
        "unknown": list(found.unknown),
        "written": where,
    }


COMMAND = Command("plan", "say where the calls of a step should run, and why", EXAMPLES, _options, _run, FIRST)
