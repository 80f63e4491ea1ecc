"""The drawings of a run's report of what the machines did: time, staleness, bytes."""

from collections.abc import Iterator, Mapping

from flows.report.charts import Chart, duration, lines
from flows.report.run_pictures import (
    MOST_WORKERS,
    SHOWN_SECONDS,
    STAGES,
    amount,
    busiest,
    bytes_picture,
    means_said,
    stage_picture,
    staleness_picture,
    timeline_picture,
    worker_picture,
    worker_shares,
)
from infra.runs.record import Record


def machines(record: Record) -> Iterator[Chart]:
    """Charts of time, staleness and bytes."""
    stages = {stage: record.curve(f"perf/{stage}_seconds") for stage in STAGES}
    stages = {stage: curve for stage, curve in stages.items() if curve}
    if stages:
        yield Chart(
            "stages",
            "Where the time goes",
            "Wall time of each step as the flow saw it. rollouts is waiting for the batch: little of it means that "
            "generation keeps ahead of training. A step that is off the scale is cut." + means_said(stages.values()),
            lambda path: stage_picture(path, stages, title="seconds by stage"),
        )
    if record.sessions:
        every = record.sessions[-1]
        spans, workers = busiest(every), len({span.worker for span in every})
        shown = f" The {MOST_WORKERS} busiest of {workers:,} workers." if len(spans) < len(every) else ""
        whole = max(span.end for span in every) - min(span.start for span in every)
        yield Chart(
            "workers",
            "What the workers did",
            f"Of {duration(whole)}, the last session. Waiting for work is time in which a worker had nothing to do."
            + shown,
            lambda path: worker_picture(path, worker_shares(spans), title="share of each worker's time"),
        )
        yield Chart(
            "timeline",
            "Timeline",
            f"The last {min(whole, SHOWN_SECONDS):.0f} seconds. Empty is waiting for work." + shown,
            lambda path: timeline_picture(path, spans, title="what each worker did when"),
        )
    mean, most = record.curve("staleness/mean"), record.curve("staleness/max")
    if mean and most:
        yield Chart(
            "staleness",
            "Staleness",
            "Versions between sampling a token and training on it." + means_said([mean]),
            lambda path: staleness_picture(path, mean, most, title="versions between sampling and training"),
        )
    names = sorted({name for line in record.metrics for name in line.metrics if name.startswith("audit/workers/")})
    yield from lines(
        "audits", "Audits", "Divergence (k3) of the log-probs of who sampled a lease and who scored it again, at the "
        "same version: what their arithmetic explains, unless one of them is wrong.",
        record, {" by ".join(name.split("/")[2:]): name for name in names}, unit="nats per token",
    )  # fmt: skip
    moved = {"published": _differences(record, "sync/bytes"), "read": record.curve("sync/fetched_bytes")}
    moved = {what: curve for what, curve in moved.items() if curve}
    if moved:
        yield Chart(
            "bytes",
            "Bytes",
            "Weights that the trainer wrote after the first version, and that all generators together read, by step."
            + means_said(moved.values()),
            lambda path: bytes_picture(path, moved, title="bytes by step"),
        )


def traffic(record: Record) -> Iterator[tuple[str, str, str]]:
    """(what, value, more about it) of weights on their way."""
    if moved := _differences(record, "sync/bytes"):
        ratios, changed = _middle(_differences(record, "sync/ratio")), _middle(_differences(record, "sync/changed"))
        yield "published", amount(sum(moved.values())), f"{ratios:.3g} times smaller than a whole version (median)"
        yield "changed", f"{changed:.2%}", "of the weights by a step (median)"
    for name, note in (("encode", "to find what has changed"), ("upload", "to store it")):
        if spent := _differences(record, f"sync/{name}_seconds"):
            yield name, f"{_middle(spent):.2g} s", f"{note}, beside the next update (median)"
    for name, note in (("download", "to fetch it, and"), ("apply", "to make the new weights of it")):
        if spent := record.curve(f"sync/{name}_seconds"):
            yield name, f"{_middle(spent):.2g} s", f"{note}, all generators together (median step)"


def _differences(record: Record, metric: str) -> dict[int, float]:
    """The metric of every version but the first, which is published whole."""
    return {step: value for step, value in record.curve(metric).items() if step > 0}


def _middle(curve: Mapping[int, float]) -> float:
    return sorted(curve.values())[len(curve) // 2] if curve else 0.0
