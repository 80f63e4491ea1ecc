"""The colours of what workers do: each its own, in both pictures, to every reader."""

import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flows.planner.drawing import Drawing, Node
from flows.report.graph_picture import graph_picture
from flows.report.html import TEMPLATES
from flows.report.pictures import CALLS, THEME
from flows.report.run_pictures import timeline_picture, worker_picture, worker_shares
from infra.cluster.placement import PlacementConfig
from infra.cluster.timeline import Span
from rl.graph import AUDIT, GENERATE, SCORES, VERIFY

# what the colour-blind see of linear RGB: Machado, Oliveira and Fernandes, 2009, table 1, severity 1
EYES = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}
# linear RGB to the cube of LMS, and that to OKLab: Ottosson, 2020
LMS = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
OKLAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]
APART = 0.08  # in OKLab, where black and white are 1 apart: four times what is just seen


def seen(color: str, eyes: str) -> NDArray[np.float64]:
    """[3] a colour in OKLab, to these eyes."""
    part = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    found: NDArray[np.float64] = OKLAB @ np.cbrt(LMS @ np.clip(EYES[eyes] @ linear, 0, 1))
    return found


def on_the_page() -> dict[str, dict[str, str]]:
    """The colours of calls in the page's light and dark style, by call."""
    style = (TEMPLATES / "report.html.j2").read_text().split("</style>")[0]
    dark = re.findall(r"^@media \(prefers-color-scheme: dark\).*$", style, flags=re.MULTILINE)
    light = re.findall(r"^:root.*$", style, flags=re.MULTILINE)
    themes = {
        name: dict(re.findall(r"--([\w-]+): (#\w+)", " ".join(lines)))
        for name, lines in (("light", light), ("dark", dark))
    }
    return {name: {call: theme[THEME[color]] for call, color in CALLS.items()} for name, theme in themes.items()}


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("theme", ["picture", "light", "dark"])
def test_no_two_colours_are_alike_to_anybody(eyes: str, theme: str) -> None:
    colors = CALLS if theme == "picture" else on_the_page()[theme]
    paper = "#14181c" if theme == "dark" else "#ffffff"
    alike = {
        (one, other): apart
        for (one, first), (other, second) in combinations({**colors, "paper": paper}.items(), 2)
        if (apart := float(np.linalg.norm(seen(first, eyes) - seen(second, eyes)))) < APART
        and {one, other} != {"waiting for work", "paper"}  # no work is to look like none
    }
    assert alike == {}


def test_every_call_has_a_colour() -> None:
    assert set(PlacementConfig().calls) <= set(CALLS)
    assert {call.name for call in (GENERATE, VERIFY, AUDIT, *SCORES.values())} <= set(CALLS)
    assert on_the_page()["light"] == CALLS


def test_both_pictures_and_the_graph_have_a_call_in_the_same_colour_and_the_legend_once(tmp_path: Path) -> None:
    calls = PlacementConfig().calls
    spans = [Span(f"w{at % 3}", call, at, at + 0.5) for at, call in enumerate([*calls, *calls])]
    worker_picture(tmp_path / "workers.svg", worker_shares(spans), title="shares")
    timeline_picture(tmp_path / "timeline.svg", spans, title="what when")
    nodes = tuple(Node(call, "", (), at) for at, call in enumerate(calls))
    graph_picture(tmp_path / "graph.svg", Drawing("calls", nodes, ()), page=True)
    for name in ("workers", "timeline", "graph"):
        text = (tmp_path / f"{name}.svg").read_text()
        labels = Counter(re.findall(r">([a-z_]+)</text>", text))
        assert {call: labels[call] for call in calls} == dict.fromkeys(calls, 1), name
        for call in calls:
            assert f"var(--{THEME[CALLS[call]]})" in text, (name, call)
