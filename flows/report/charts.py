"""The figures and drawings of a run's report: what it has learned."""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from flows.report.pictures import reward_curve
from flows.report.run_pictures import line_picture, means_said
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
    metrics: tuple[str, ...] = ()  # whose curves it shows
    svg: str = ""


def drawn(charts: Iterable[Chart]) -> list[Chart]:
    """The charts with their SVG elements."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for chart in charts:
            path = Path(folder, f"{chart.name}.svg")
            chart.draw(path)
            found.append(replace(chart, svg=path.read_text("utf-8")))
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
    """Charts of learning: what is known by name, and the other metrics of updates in a last one."""
    shown = set[str]()
    names = sorted({name for line in record.metrics for name in line.metrics})
    for chart in by_name(title, record, names):
        shown.update(chart.metrics)
        yield chart
    more = [name for name in names if name.startswith(("policy/", "correction/")) and name not in shown]
    yield from lines(
        "more", "More of updates", "Of the algorithm and its corrections; docs/metrics.md says what each is.",
        record, dict(zip(more, more, strict=True)),
    )  # fmt: skip


def by_name(title: str, record: Record, names: Sequence[str]) -> Iterator[Chart]:
    """Charts of the metrics that have a place; ``names``: of all that were logged."""
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
        "turns", "Turns", "Of the policy's in an episode, and what it called in it; held out: greedy.", record,
        {"turns": "turns/mean", "calls": "tools/calls", "held out": "eval/turns"},
    )  # fmt: skip
    yield from lines("refused", "Refused calls", "Share of the calls.", record, {"refused": "tools/errors"}, share=True)
    yield from lines(
        "shares", "Shares", "Completions cut at the token limit; tokens whose ratio was cut, and those that a "
        "correction kept; completions that no verifier could judge.",
        record,
        {
            "truncated": "completion/truncated",
            "clipped": "policy/clip_fraction",
            "kept": "correction/kept",
            "unjudged": "reward/error_rate",
        },
        share=True,
    )  # fmt: skip
    yield from lines(
        "kl-behaviour", "KL, behaviour policy to trained policy", "Between the policy that sampled and the one that "
        "learned from it, before the update: about 0 when on-policy. It has nothing to do with the reference.",
        record, {"mismatch": "policy/mismatch_kl"}, unit="nats per token",
    )  # fmt: skip
    yield from lines(
        "kl-reference", "KL to the reference policy", "How far training has taken the policy from the reference, by "
        "the estimator of algorithm.kl.",
        record, {"to the reference": "loss/kl_reference"}, unit="nats per token",
    )  # fmt: skip
    if len(set(record.curve("loss/kl_coefficient").values())) > 1:
        yield from lines(
            "kl-coefficient", "Coefficient of the KL to the reference", "Adapted to algorithm.kl.target.",
            record, {"coefficient": "loss/kl_coefficient"},
        )  # fmt: skip
    yield from lines("gradient", "Gradient norm", "Before clipping.", record, {"norm": "policy/grad_norm"})
    yield from critic(record)
    yield from lines(
        "groups", "Groups", "Generated for a step, and trained on: only those whose rewards differ teach.",
        record, {"generated": "groups/generated", "trained on": "groups/used"}, unit="groups",
    )  # fmt: skip


def critic(record: Record) -> Iterator[Chart]:
    """Charts of a value model, where the run has one."""
    yield from lines(
        "explained-variance", "Critic: explained variance", "Of the returns, by the values that advantages are made "
        "of: 1 where they foresee every return, 0 where they are as good as a constant, less where they are worse.",
        record, {"explained": "critic/explained_variance"},
    )  # fmt: skip
    yield from lines(
        "critic-loss", "Critic: loss", "Half the squared distance of values from returns, mean over tokens.",
        record, {"loss": "critic/loss"},
    )  # fmt: skip
    yield from lines(
        "value", "Critic: mean value", "Of the tokens of a batch: what it expects of them.",
        record, {"value": "critic/value_mean"},
    )  # fmt: skip


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
    if any(record.curve("reward/error_rate").values()):
        unjudged = first_to_last(record.curve("reward/error_rate"), "{:.1%}")
        yield "not judged", unjudged, "of the completions, first and last step; no other figure is of these"
    if entropy := first_to_last(record.curve("policy/entropy")):
        yield "entropy", entropy, "nats per token, first and last step"
    if lengths := first_to_last(record.curve("completion/tokens_mean"), "{:.0f}"):
        cut = list(record.curve("completion/truncated").values())
        yield "tokens", lengths, f"per completion; {cut[-1]:.0%} cut at the limit in the last step" if cut else ""
    if turns := first_to_last(record.curve("turns/mean"), "{:.2f}"):
        refused = list(record.curve("tools/errors").values())
        yield "turns", turns, f"of an episode; {refused[-1]:.0%} of the calls were refused in the last step"
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
    yield "lost calls", str(sum(lost.values())), by_call or "none died with its worker"


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
        yield Chart(
            name,
            title,
            words,
            lambda path: line_picture(path, curves, title=title, unit=unit, share=share),
            tuple(metrics.values()),
        )


def first_to_last(curve: Mapping[int, float], form: str = "{:z.3f}") -> str:
    """The first and the last value that are known; empty where there is none."""
    values = [form.format(value) for value in curve.values() if math.isfinite(value)]
    return " → ".join(values if len(values) < 2 else (values[0], values[-1]))


def named(config: Mapping[str, Any], section: str, leaf: str) -> str:
    found = config.get(section, "")
    return str(found.get(leaf, "")) if isinstance(found, Mapping) else str(found)


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
