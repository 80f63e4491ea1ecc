"""Pictures of how a run went: its figures by step, stages and bytes by step, staleness, what each worker did."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flows.report.pictures import BLUE, CALLS, GREY, INK, ORANGE, PALE, SEEDS, blank, legend, save
from infra.cluster.timeline import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Mapping[int, float]  # value by step

BESIDE = {"publish"}  # calls that run while their worker does something else
# of a step, as `Training.timed` is given them
STAGES = {
    "rollouts": BLUE,
    "update": ORANGE,
    "publish": CALLS["publish"],
    "log": "#0e8a8a",
    "evaluate": CALLS["evaluate"],
}
BINS = 150  # bars side by side; of a longer run each bar is the mean of some steps
SHOWN_SECONDS = 30.0  # of the timeline: enough for the steps' pattern, and each bar can still be seen
ROW_INCHES = 0.42
MOST_WORKERS = 64  # rows that a picture can hold and a reader can follow


def line_picture(path: Path, curves: Mapping[str, Curve], *, title: str, unit: str = "", share: bool = False) -> None:
    """Figures by step, a line each; a value that is not finite is a gap. Shares are drawn from 0 to 1."""
    figure, axes = blank(title, height=3.4)
    for at, (name, curve) in enumerate(curves.items()):
        groups = [[step for step in group if step in curve] for group in _bins([curve])[0]]
        steps = [sum(group) / len(group) for group in groups]
        dot = "." if len(steps) < 20 else None
        axes.plot(steps, _means(curve, groups), color=SEEDS[at % len(SEEDS)], linewidth=1.8, marker=dot, label=name)
    if len(drawn := {step for curve in curves.values() for step in curve}) == 1:
        axes.set_xlim(0, max((1, *drawn)))  # else its ticks are parts of a step
    axes.set_ylabel(unit, color=INK)
    known = [value for curve in curves.values() for value in curve.values() if math.isfinite(value)]
    if share:
        axes.set_ylim(0, 1.02)
    elif known and min(known) >= 0:
        axes.set_ylim(0, max(known) * 1.1 or 1)
    if len(curves) > 1:
        legend(axes)
    save(figure, path)


def stage_picture(path: Path, stages: Mapping[str, Curve], *, title: str) -> None:
    """Seconds of each step by stage, stacked."""
    figure, axes = blank(title)
    groups, edges = _bins(stages.values())
    below = [0.0] * len(groups)
    for name, curve in stages.items():
        above = [low + height for low, height in zip(below, _means(curve, groups), strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, color=STAGES[name], label=name, linewidth=0)
        below = above
    # the first step waits for the first batch: it must not flatten the others
    known = sorted(filter(math.isfinite, below)) or [0.0]
    usual = known[int(0.98 * (len(known) - 1))]
    axes.set_ylim(0, max(usual * 1.15, 1e-3))
    axes.set_ylabel("seconds", color=INK)
    legend(axes)
    save(figure, path)


def bytes_picture(path: Path, curves: Mapping[str, Curve], *, title: str) -> None:
    """Bytes of each step, by what moved them."""
    from matplotlib.ticker import FuncFormatter

    figure, axes = blank(title, height=3.4)
    groups, edges = _bins(curves.values())
    for at, (name, curve) in enumerate(curves.items()):
        means = _means(curve, groups)
        if at == 0:
            axes.stairs(means, edges, baseline=None, color=BLUE, linewidth=1.6, label=name, zorder=3)
        else:
            axes.stairs(means, edges, fill=True, color=PALE, label=name, linewidth=0)
    axes.set_ylim(0, 1.15 * max([1.0, *(value for curve in curves.values() for value in curve.values())]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))
    legend(axes)
    save(figure, path)


def staleness_picture(path: Path, mean: Curve, most: Curve, *, title: str) -> None:
    """How many versions old the tokens were that a step trained on."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = blank(title, height=3.4)
    groups, edges = _bins([mean, most])
    axes.stairs(_means(mean, groups), edges, fill=True, color=PALE, label="mean", linewidth=0)
    oldest = [max(most.get(step, 0.0) for step in group) for group in groups]
    axes.stairs(oldest, edges, baseline=None, color=BLUE, linewidth=1.6, label="oldest token")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, max([1.0, *most.values()]) * 1.15)
    axes.set_ylabel("versions", color=INK)
    legend(axes)
    save(figure, path)


def busiest(spans: Sequence[Span]) -> Sequence[Span]:
    """The spans of the workers that were busy longest, as many as a picture has rows for."""
    seconds: dict[str, float] = defaultdict(float)
    for span in spans:
        seconds[span.worker] += span.end - span.start
    if len(seconds) <= MOST_WORKERS:
        return spans
    shown = set(sorted(seconds, key=lambda name: -seconds[name])[:MOST_WORKERS])
    return [span for span in spans if span.worker in shown]


def worker_shares(spans: Sequence[Span]) -> dict[str, dict[str, float]]:
    """What share of the time each worker spent on what, of all the time that the spans cover; they add up to 1. What
    runs beside other calls is not counted."""
    if not spans:
        return {}
    whole = max(max(span.end for span in spans) - min(span.start for span in spans), 1e-9)
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in spans:
        if span.call in BESIDE:
            continue
        worker = seconds[span.worker]
        worker["lost" if span.lost else span.call] += span.end - span.start - span.loading
        worker["waiting for weights"] += span.loading
    found: dict[str, dict[str, float]] = {}
    for name, by in sorted(seconds.items()):
        shares = {what: by[what] / whole for what in [*CALLS, *(set(by) - set(CALLS))] if by.get(what, 0) > 0}
        found[name] = {**shares, "waiting for work": max(0.0, 1 - sum(shares.values()))}
    return found


def worker_picture(path: Path, shares: Mapping[str, Mapping[str, float]], *, title: str) -> None:
    """A bar for each worker, divided by what it spent its time on."""
    from matplotlib.ticker import PercentFormatter

    figure, axes = blank(title, height=1.7 + ROW_INCHES * len(shares))
    labelled: set[str] = set()
    for row, by in enumerate(shares.values()):
        left = 0.0
        for name, share in by.items():
            label = None if name in labelled else name
            labelled.add(name)
            axes.barh(row, share, left=left, height=0.62, color=CALLS.get(name, GREY), label=label, linewidth=0)
            left += share
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("")
    _rows(axes, list(shares))
    save(figure, path)


def timeline_picture(path: Path, spans: Sequence[Span], *, title: str) -> None:
    """What each worker did when, in the last SHOWN_SECONDS."""
    from matplotlib.ticker import MaxNLocator

    workers = sorted({span.worker for span in spans})
    figure, axes = blank(title, height=1.7 + ROW_INCHES * len(workers))
    end = max(span.end for span in spans)
    began = max(end - SHOWN_SECONDS, min(span.start for span in spans))
    bars: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for span in spans:
        if span.end > began:
            row, ready = workers.index(span.worker), span.start + span.loading
            bars[row, "lost" if span.lost else span.call].append((ready - began, span.end - ready))
            if span.loading:
                bars[row, "waiting for weights"].append((span.start - began, span.loading))
    labelled: set[str] = set()
    for (row, name), pieces in sorted(bars.items(), key=lambda item: [*CALLS, item[0][1]].index(item[0][1])):
        label = None if name in labelled else name
        labelled.add(name)
        where = (row + 0.31, 0.12) if name in BESIDE else (row - 0.31, 0.62)
        axes.broken_barh(pieces, where, color=CALLS.get(name, GREY), label=label, linewidth=0)
    axes.set_xlim(0, end - began)
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.set_xlabel("seconds", color=INK)
    _rows(axes, workers)
    save(figure, path)


def amount(count: float) -> str:
    """Bytes, for people."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def means_said(curves: Iterable[Curve]) -> str:
    """What the words below a drawing of these add, where not every step has a point of its own."""
    size = _bin_size(max(map(len, curves), default=0))
    return f" Each point is the mean of {size} steps." if size > 1 else ""


def _bin_size(steps: int) -> int:
    return max(1, -(-steps // BINS))


def _bins(curves: Iterable[Curve]) -> tuple[list[list[int]], list[float]]:
    """The steps of all curves in bins, and the edges of these. A bin is one patch of one artist, not a bar of its own:
    laying out hundreds of those takes seconds."""
    steps = sorted({step for curve in curves for step in curve})
    size = _bin_size(len(steps))
    groups = [steps[at : at + size] for at in range(0, len(steps), size)]
    return groups, [*(group[0] - 0.5 for group in groups), groups[-1][-1] + 0.5]


def _means(curve: Curve, groups: Sequence[Sequence[int]]) -> list[float]:
    return [sum(curve.get(step, 0.0) for step in group) / len(group) for group in groups]


def _rows(axes: "Axes", names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first on top
    axes.grid(visible=False)
    legend(axes)
