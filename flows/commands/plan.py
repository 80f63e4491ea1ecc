"""`rlvf plan`."""

import argparse
import json
import shlex
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from flows.commands.command import Command, say
from flows.commands.named_run import named_run
from flows.config import TrainConfig
from flows.options.reading import add_options, read_config
from flows.planner.applied import apply_to_file, apply_to_run, settings, written
from flows.planner.calls import graph_of_config, places_by_tags, planned_calls
from flows.planner.measured import MeasuredStep, measured_step
from flows.planner.memory import memory, sizes
from flows.planner.proposal import OTHERS, Proposal, propose
from flows.start.resume import MAY_CHANGE
from flows.start.runs import local_folder
from flows.start.saved import saved_config
from infra.home import rlvf_home
from infra.interrupts import put_off
from infra.runs.record import Record, read_record
from infra.security.printable import printable
from infra.storage.lock import RunInUseError, held

EXAMPLES = """
rlvf plan --run newest                                 where the calls of that run should run, and the speed-up
rlvf plan --run newest --most_stale 2 --apply          and change its settings: rlvf train --resume goes on with them
rlvf plan --probe --cluster.scheduler tls://10.0.0.5:8786   measure each call on each worker first, in a few steps
rlvf plan --probe --config my.yaml --apply             write the plan into my.yaml
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
        "--most_stale", metavar="N", type=int, help="consider a staleness of up to N too (default: the present one)"
    )
    command.add_argument(
        "--apply", action="store_true", help="write the plan into --config, else into the run's settings"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _run(given: argparse.Namespace) -> None:
    if bool(given.run) == given.probe:
        raise ValueError("name a run that has trained (--run newest), or measure with --probe: one of both")
    named: list[str] = []
    if given.probe:
        if given.apply and given.config is None:
            raise ValueError("--apply: name the file to write with --config FILE.yaml, as probes belong to no run")
        config = read_config(TrainConfig, file=given.config, overrides=given.overrides)
    else:
        if given.overrides:
            raise ValueError(f"--{next(iter(given.overrides))}: a run has its own settings; leave it out, or --probe")
        named = [named_run(name) for name in given.run]
        config = saved_config(named[0])
    if given.most_stale is not None and given.most_stale < config.staleness:
        raise ValueError(f"--most_stale {given.most_stale}: give at least the staleness of now, {config.staleness}")
    uris = _probe(config) if given.probe else named
    records = [read_record(uri, local_folder(uri, rlvf_home())) for uri in uris]
    steps = [measured_step(record, uri) for record, uri in zip(records, uris, strict=True)]
    found = _proposal(config, uris[0], records, steps, given.most_stale, probed=given.probe)
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
    config: TrainConfig,
    uri: str,
    records: list[Record],
    steps: list[MeasuredStep],
    most: int | None,
    *,
    probed: bool,
) -> Proposal:
    made = {call for step in steps for call in step.calls}
    graph = graph_of_config(config.algorithm, made)
    room = {name: size for record in records for name, size in memory(record).items()}
    staleness = range(config.staleness + 1, 1 + (config.staleness if most is None else most))
    said = {name: frozenset(tags) for record in records for name, tags in record.about.get("workers", {}).items()}
    calls = planned_calls(graph)
    return propose(
        calls,
        config,
        steps[0],
        size=sizes(graph, records[0], config, uri),
        memory=room,
        others=steps[1:],
        staleness=staleness,
        tags=said,
        probed=places_by_tags(config.placement, said, [call.name for call in calls]) if probed else None,
    )


def _probe(config: TrainConfig) -> list[str]:
    """The URIs of the probes."""
    with put_off():
        from flows.planner.probe import ProbeError, made, probes, tags_of_workers  # with Dask

    tags = tags_of_workers(config.cluster)
    places_by_tags(config.placement, tags, [call.name for call in planned_calls(graph_of_config(config.algorithm))])
    name = f"probe-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    uris: list[str] = []
    failed: ProbeError | None = None
    wanted = list(probes(config, tags, name))
    took = ""
    try:
        for number, probe in enumerate(wanted, 1):
            say(f"probe {number} of {len(wanted)}, {probe.run}: {probe.steps} steps{took}")
            began = time.monotonic()
            try:
                uris.append(made(probe, lambda line: say(f"  {line}")))
            except ProbeError as error:  # of these workers: others are planned with
                say(f"{error}; it is left out")
                failed = error
            took = f"; the last one took {time.monotonic() - began:.0f} s"
        if failed is not None and not uris:
            raise failed
    finally:  # stopped, too
        if uris:
            runs = " ".join(f"--run {shlex.quote(uri)}" for uri in uris)
            say(f"the probes stay, for other questions: rlvf plan {runs}")
    return uris


def _words(found: Proposal, where: str | None) -> str:
    how = "simulated" if found.measured is None else "measured"
    named = found.measured is not None and where is None  # a run's, which is not changed yet
    rows = [f"now        {found.now:.3g} s a step ({how}); {_limits(found.bottleneck, found.lost)}"]
    rows += [f"           {worker} busy {share:.0%}" for worker, share in _busiest_first(found.busy)]
    if not found.changes:
        rows.append("plan       none is better by more than 2%: it stays")
    else:
        rows.append(
            f"plan       {found.seconds:.3g} s a step (predicted), {found.now / found.seconds:.2f} times faster; then "
            f"{_limits(found.bottleneck_then, found.lost_then)}"
        )
        rows += [f"           {worker} busy {share:.0%}" for worker, share in _busiest_first(found.then)]
        for change in found.changes:
            options = " ".join(written(path, value) for path, value in change.options.items())
            fixed = [f"--{path}" for path in change.options if not path.startswith(MAY_CHANGE)]
            how = f"; --resume takes no {', '.join(fixed)}: by --apply, or in a new run" if fixed and named else ""
            rows.append(f"set        {options}   ({change.gain:.2f} times{how})")
    rows += [
        f"{'' if n else 'places':10s} {call}: {', '.join(by)}" for n, (call, by) in enumerate(found.best.places.items())
    ]
    flying = found.leases * (found.best.staleness + 1)
    size = "as large as suits each worker" if found.lease is None else f"of up to {found.lease} problems"
    rows.append(
        f"leases     {found.leases} a step, {size}; at most {flying} in flight (staleness {found.best.staleness})"
    )
    rows += [f"load       {line}: plan again when that has changed" for line in found.load]
    if found.unknown:
        how = "no lease came to them" if found.measured is None else "rlvf plan --probe"
        rows.append(f"unknown    {'; '.join(found.unknown)}: not measured, so not planned with ({how})")
    if where is not None:
        rows.append(f"written    {where}")
    return "\n".join(rows)


def _limits(name: str, lost: float) -> str:
    """The words for a bottleneck."""
    if name == OTHERS:
        return f"{name} are the bottleneck: without them it would be {lost:.0%} shorter"
    return f"{name} {'are' if name.startswith('the cores') else 'is'} the bottleneck"


def _busiest_first(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda one: -one[1])


def _as_json(found: Proposal, where: str | None) -> dict[str, object]:
    return {
        "step_seconds": found.now,
        "measured": found.measured is not None,
        "planned_seconds": found.seconds,
        "bottleneck": found.bottleneck,
        "busy": dict(found.busy),
        "places": found.best.places,
        "leases": found.leases,
        "lease": found.lease,
        "staleness": found.best.staleness,
        "changes": [{"options": dict(each.options), "gain": each.gain} for each in found.changes],
        "load": list(found.load),
        "unknown": list(found.unknown),
        "written": where,
    }


COMMAND = Command("plan", "plan on which workers the calls of a step should run", EXAMPLES, _options, _run, FIRST)
