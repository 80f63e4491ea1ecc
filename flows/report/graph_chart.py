"""The drawing of a step's calls in a run's report."""

from collections.abc import Iterator, Mapping
from typing import Any

from flows.planner.calls import algorithm_of, graph_of_settings
from flows.planner.drawing import drawing
from flows.planner.measured import NothingMeasuredError, measured_step
from flows.report.charts import Chart
from flows.report.graph_picture import graph_picture
from infra.cluster.placement import PlacementConfig
from infra.runs.record import Record


def graph_chart(config: Mapping[str, Any], record: Record, name: str) -> Iterator[Chart]:
    """The calls of a step, with what they took; nothing where the timeline says too little. `config` may be anything:
    a report is made of what there is."""
    try:
        step = measured_step(record, name)
    except NothingMeasuredError:
        return
    graph = graph_of_settings(config, step.calls)
    drawn = drawing(f"{algorithm_of(config)}: {name}", graph, PlacementConfig(), step)
    yield Chart(
        "graph",
        "A step's calls",
        f"What each reads, its seconds on all workers together, and where it ran; the mean of {step.steps} steps.",
        lambda path: graph_picture(path, drawn, page=True),
    )
