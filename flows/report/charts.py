"""The figures and drawings of a run's report: learning first, then what the machines did."""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from flows.report.pictures import reward_curve
from flows.report.run_pictures import (
    MOST_WORKERS,
    SHOWN_SECONDS,
    STAGES,
    amount,
    busiest,
    bytes_picture,
    line_picture,
    means_said,
    stage_picture,
    staleness_picture,
    timeline_picture,
    worker_picture,
    worker_shares,
)
from infra.runs.record import Record

MOST_LINES = 16  # in one drawing
TOTALS = {"mean", "pass_rate", "error_rate"}  # metrics under reward/ that are no part of it


@dataclass(frozen=True)
class Chart:
    """A drawing and what it shows."""

    name: str
    title: str
    words: str
    draw: Callable[[Path], None]
    svg: str = ""


def drawn(charts: Iterable[Chart]) -> list[Chart]:
    """The charts with their SVG elements."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for chart in charts:
            path = Path(folder, f"{chart.name}.svg")
            chart.draw(path)
            found.append(Chart(chart.name, chart.title, chart.words, chart.draw, path.read_text("utf-8")))
    return found


def title_of(config: Mapping[str, Any], name: str, by: str = "") -> str:
    """What was trained on what, and how (`by` its algorithm, unless told); else the run's name."""
    parts = (
        named(config, "policy", "model"),
        named(config, "problems", "path"),
        by or named(config, "algorithm", "name") or named(config, "loss", "name"),
    )
    model, problems, loss = (PurePosixPath(part).name for part in parts)
    return f"{model} on {problems}, {loss}" if model else name


def reward(title: str, record: Record) -> Chart:
    """Mean reward by step and on held-out problems; of a run of an older version, whose evaluations had none, theirs is
    left out."""
    rewards, held_out = record.curve("reward/mean"), sorted(record.curve("eval/reward").items())
    return Chart(
        "reward",
        "Reward",
        "Mean reward: of all completions generated for a step, and on problems kept out of training (greedy).",
        lambda path: reward_curve(path, list(rewards), list(rewards.values()), held_out=held_out, title=title),
    )


def learning(title: str, record: Record) -> Iterator[Chart]:
    """Charts of learning."""
    yield reward(title, record)
    rewards, rates = record.curve("reward/mean"), record.curve("reward/pass_rate")
    if any(not math.isclose(rates[step], rewards.get(step, math.nan)) for step in rates):
        solved = sorted(record.curve("eval/pass_at_1").items())
        yield Chart(
            "pass-rate",
            "Pass rate",
            "Share of completions with reward 1, as the reward is shown.",
            lambda path: reward_curve(
                path, list(rates), list(rates.values()), held_out=solved, title=title, label="pass rate"
            ),
        )
    names = {name for line in record.metrics for name in line.metrics}
    yield from lines(
        "sampled", "Held out, sampled", "Mean reward of sampled completions, and how many problems one of them solves.",
        record, {"reward": "eval/reward_sampled", "pass rate": "eval/sampled", "pass@k": "eval/pass_at_k"},
    )  # fmt: skip
    sets = sorted(name.split("/")[1] for name in names if name.startswith("reward/") and name.endswith("/mean"))
    sets = [name for name in sets if name != "mean"]
    yield from lines(
        "sets", "Problem sets", "Mean reward of each.", record, {name: f"reward/{name}/mean" for name in sets}
    )
    parts = sorted(name.partition("/")[2] for name in names if name.startswith("reward/") and name.count("/") == 1)
    yield from lines(
        "parts", "Parts of the reward", "Mean of each.", record,
        {name: f"reward/{name}" for name in parts if name not in TOTALS},
    )  # fmt: skip
    evals = sorted(name.split("/")[1] for name in names if name.startswith("eval/") and name.endswith("/reward"))
    yield from lines(
        "evals", "Further evaluations", "Mean reward, greedy.", record,
        {name: f"eval/{name}/reward" for name in evals if name != "reward"},
    )  # fmt: skip
    yield from lines(
        "entropy", "Entropy", "Of the distribution that tokens are drawn from. Where it falls to 0 early, all samples "
        "of a prompt become alike and nothing is left to learn from.",
        record, {"entropy": "policy/entropy"}, unit="nats per token",
    )  # fmt: skip
    yield from lines(
        "lengths", "Completions", "Their mean length.", record, {"length": "completion/tokens_mean"}, unit="tokens"
    )
    yield from lines(
        "shares", "Shares", "Completions cut at the token limit; tokens whose ratio was cut; completions that no "
        "verifier could judge.",
        record,
        {"truncated": "completion/truncated", "clipped": "policy/clip_fraction", "unjudged": "reward/error_rate"},
        share=True,
    )  # fmt: skip
    yield from lines(
        "kl", "KL", "Between the policy that sampled and the one that learned from it, before the update, by token.",
        record, {"mismatch": "policy/mismatch_kl"}, unit="nats per token",
    )  # fmt: skip
    yield from lines("gradient", "Gradient norm", "Before clipping.", record, {"norm": "policy/grad_norm"})
    yield from lines(
        "groups", "Groups", "Generated for a step, and trained on: only those whose rewards differ teach.",
        record, {"generated": "groups/generated", "trained on": "groups/used"}, unit="groups",
    )  # fmt: skip


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


def figures(record: Record, config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(what, value, more about it)."""
    sizes = record.about.get("held_out") or {}
    count = f"{sum(sizes.values())} " if sizes else ""
    held_out = (
        ("reward", "eval/reward", f"{count}held-out problems, greedy, mean"),
        ("reward, sampled", "eval/reward_sampled", f"{count}held-out problems, as in training"),
        *(
            (f"reward, {name}", f"eval/{name}/reward", f"{size} of the held-out problems, greedy, mean")
            for name, size in sizes.items()
            if len(sizes) > 1
        ),
        ("pass rate", "eval/pass_at_1", f"{count}held-out problems, greedy, share with reward 1"),
        ("pass rate, sampled", "eval/sampled", f"{count}held-out problems, as in training"),
    )
    training = "reward in training", first_to_last(record.curve("reward/mean")), "first and last step"
    evaluated = {step for _, metric, _ in held_out for step in record.curve(metric)}
    untrained = ", before training" if evaluated == {0} else ""  # it was stopped: that is not its result
    if untrained:
        yield training
    for what, metric, note in held_out:
        if found := first_to_last(record.curve(metric)):
            others = "; figures of another evaluation are left out" if record.has_other_plans(metric) else ""
            yield what, found, note + untrained + others
    if not untrained:
        yield training
    if entropy := first_to_last(record.curve("policy/entropy")):
        yield "entropy", entropy, "nats per token, first and last step"
    if lengths := first_to_last(record.curve("completion/tokens_mean"), "{:.0f}"):
        cut = list(record.curve("completion/truncated").values())
        yield "tokens", lengths, f"per completion; {cut[-1]:.0%} cut at the limit in the last step" if cut else ""
    yield from effort(record, config)


def effort(record: Record, config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(what, value, more about it) of steps, time and lost calls."""
    yield "steps", f"{record.steps[-1]} of {config.get('steps', '?')}", ""
    if seconds := list(filter(math.isfinite, record.curve("perf/step_seconds").values())):
        yield "time", duration(sum(seconds)), f"in steps; {sorted(seconds)[len(seconds) // 2]:.2f} s each (median)"
    for what in ("rollouts", "examples"):
        if paces := sorted(filter(math.isfinite, record.curve(f"perf/{what}_per_second").values())):
            yield f"{what}/s", f"{paces[len(paces) // 2]:.0f}", "median step"
    lost = record.about.get("lost") or {}
    by_call = ", ".join(f"{count} × {call}" for call, count in lost.items())
    yield "lost calls", str(sum(lost.values())), by_call or "no worker died"


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


def lines(
    name: str,
    title: str,
    words: str,
    record: Record,
    metrics: Mapping[str, str],
    unit: str = "",
    *,
    share: bool = False,
) -> Iterator[Chart]:
    """A chart of these metrics, if any was logged."""
    curves = {label: record.curve(metric) for label, metric in metrics.items()}
    curves = {label: curve for label, curve in curves.items() if any(map(math.isfinite, curve.values()))}
    if curves:
        if len(curves) > MOST_LINES:
            words += f" The first {MOST_LINES} of {len(curves):,} are drawn."
            curves = dict(islice(curves.items(), MOST_LINES))
        words += means_said(curves.values())
        yield Chart(name, title, words, lambda path: line_picture(path, curves, title=title, unit=unit, share=share))


def first_to_last(curve: Mapping[int, float], form: str = "{:z.3f}") -> str:
    """The first and the last value that are known; empty where there is none."""
    values = [form.format(value) for value in curve.values() if math.isfinite(value)]
    return " → ".join(values if len(values) < 2 else (values[0], values[-1]))


def _differences(record: Record, metric: str) -> dict[int, float]:
    """The metric of every version but the first, which is published whole."""
    return {step: value for step, value in record.curve(metric).items() if step > 0}


def _middle(curve: Mapping[int, float]) -> float:
    return sorted(curve.values())[len(curve) // 2] if curve else 0.0


def named(config: Mapping[str, Any], section: str, leaf: str) -> str:
    found = config.get(section, "")
    return str(found.get(leaf, "")) if isinstance(found, Mapping) else str(found)


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
