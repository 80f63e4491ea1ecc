"""The graph of a step's calls for people: which reads what of which, where each runs, and what it took in a run."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flows.planner.measured import MeasuredStep
from infra.cluster.placement import PlacementConfig
from rl.algorithm_config import CommonAlgorithmConfig
from rl.algorithms import ALGORITHMS
from rl.graph import REWARD, SCORES, Call, Graph, graph_of
from rl.kl_config import KlConfig

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


def graph_of_config(config: CommonAlgorithmConfig, calls: Iterable[str] = ()) -> Graph:
    """The graph of an algorithm with its options; see `graph_named`."""
    return graph_named(config.name, config.kl.coefficient > 0, calls)


def graph_named(name: str, kl: bool, calls: Iterable[str] = ()) -> Graph:
    """The graph of an algorithm, with a divergence from a reference if `kl`, and a reward model where it is among the
    `calls` that a run has made. A user's own is not run here: what it needs is seen from these calls, too."""
    made = set(calls)
    needs = KlConfig(coefficient=float(kl)).needs
    if name not in ALGORITHMS:
        name, needs = "reinforce", needs | {field for field, call in SCORES.items() if call.name in made}
    return graph_of(ALGORITHMS[name](), needs, reward_model=REWARD.name in made)


def graph_of_settings(config: Mapping[str, Any], calls: Iterable[str]) -> Graph:
    """The graph of a run's settings as they were read, whatever they hold, and of the calls that it has made."""
    coefficient = _section(_algorithm(config), "kl").get("coefficient")
    return graph_named(algorithm_of(config), isinstance(coefficient, int | float) and coefficient > 0, calls)


def algorithm_of(config: Mapping[str, Any]) -> str:
    """The name of the algorithm in settings, whatever they hold."""
    return str(_algorithm(config).get("name", "reinforce"))


def _algorithm(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return _section(config, "algorithm") or _section(config, "loss")  # as older versions called it


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


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
    if shown := [f"{waited:.2g} s for {what}" for what, waited in waits.items() if waited >= SHOWN * step.seconds]:
        yield f"and waits {', '.join(shown)}"
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
