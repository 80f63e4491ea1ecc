"""The graph of a step's calls for people: which reads what of which, where each runs, and what it took in a run."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flows.planner.measured import MeasuredStep
from infra.cluster.placement import PlacementConfig
from rl.graph import Call, Graph

MOST_NAMES = 3  # workers of a call that are named
SHOWN = 0.005  # share of a step from which a wait is shown
ENTITIES = str.maketrans(
    {"#": "#35;", "&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "#96;"}
)  # of Mermaid's


@dataclass(frozen=True)
class Node:
    """A call, as it is drawn."""

    name: str
    model: str  # that it runs; empty where a program does
    lines: tuple[str, ...]  # where it runs, and what it took
    layer: int  # calls before it, on the longest way


@dataclass(frozen=True)
class Drawing:
    """Nodes in the graph's order, and (from, to, fields) between them."""

    title: str
    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str, tuple[str, ...]], ...]


def drawing(title: str, graph: Graph, placement: PlacementConfig, step: MeasuredStep | None = None) -> Drawing:
    """The graph, with what a run has measured of it."""
    layers: dict[str, int] = {}
    for call in graph.calls:
        layers[call.name] = 1 + max((layers[before] for before in graph.before(call)), default=-1)
    nodes = tuple(
        Node(call.name, call.model or "", tuple(_lines(call, placement, step)), layers[call.name])
        for call in graph.calls
    )
    edges = []
    for call in graph.calls:
        for before in graph.before(call):
            writer = next(each for each in graph.calls if each.name == before)
            edges.append((before, call.name, tuple(name for name in call.reads if name in writer.writes)))
    return Drawing(title, nodes, tuple(edges))


def _lines(call: Call, placement: PlacementConfig, step: MeasuredStep | None) -> Iterable[str]:
    if step is None:
        tags = placement.tags(call.name) if call.name in placement.calls else ()
        yield f"each {call.each}"
        if tags:
            yield f"on {' '.join(tags)}"
        return
    if not step.place(call.name):
        yield "was not made"
        return
    taken, waits = step.taken(call.name), {"weights": step.waited(call.name), "a core": step.delayed[call.name]}
    count = step.leases[call.name]
    yield f"{taken:.3g} s a step in {count:.3g} call{'' if count == 1 else 's'}"
    yield f"{taken / step.seconds:.0%} of {step.seconds:.3g} s"
    for what, waited in waits.items():
        if waited >= SHOWN * step.seconds:
            yield f"and waits {waited:.2g} s for {what}"
    yield f"on {_named(step.place(call.name))}"


def _named(workers: tuple[str, ...]) -> str:
    more = len(workers) - MOST_NAMES
    return ", ".join(workers[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def mermaid(drawn: Drawing) -> str:
    """As Mermaid's text: https://mermaid.js.org/syntax/flowchart.html"""
    rows = [f"%% {_plain(drawn.title)}", "flowchart LR"]
    for node in drawn.nodes:
        parts = f"<b>{_escaped(node.name)}</b>", *map(_escaped, filter(None, (node.model, *node.lines)))
        rows.append(f'    {_id(node.name)}["{"<br>".join(parts)}"]')
    for before, after, fields in drawn.edges:
        rows.append(f'    {_id(before)} -->|"{_escaped(", ".join(fields))}"| {_id(after)}')
    return "\n".join(rows)


def as_json(drawn: Drawing, graph: Graph, step: MeasuredStep | None) -> Mapping[str, object]:
    """The calls with what is known of them, for programs."""
    calls = []
    for call in graph.calls:
        one: dict[str, object] = {
            "name": call.name,
            "model": call.model,
            "reads": call.reads,
            "writes": call.writes,
            "each": call.each,
            "before": graph.before(call),
        }
        if step is not None:
            one |= {
                "seconds": step.taken(call.name),
                "share": step.taken(call.name) / step.seconds,
                "waiting": step.waited(call.name),
                "waiting_for_core": step.delayed.get(call.name, 0.0),
                "workers": step.place(call.name),
            }
        calls.append(one)
    return {"title": drawn.title, "calls": calls, "step_seconds": None if step is None else step.seconds}


def _id(name: str) -> str:
    return "end_" if name == "end" else name  # a word of Mermaid's


def _escaped(text: str) -> str:
    """As a part of a label in quotes, without markup."""
    return _plain(text).translate(ENTITIES)


def _plain(text: str) -> str:
    """In one line, and without "%%{", which begins a directive in a comment and in a label, too."""
    return re.sub("%+", "%", " ".join(text.split()))
