"""The picture of a step's calls: a box each, in layers from left to right, arrows with what is read."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.planner.drawing import Drawing, Node
from flows.report.pictures import CALLS, GREY, INK, blank, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER = "#ffffff"
WIDE, APART, BETWEEN = 2.6, 1.5, 0.45  # inches: of a box, between layers, between boxes of one
LINE = 0.21  # inches of a line in a box
LANE = 0.3  # inches above or below all boxes, where arrows pass a layer

Point = tuple[float, float]


@dataclass(frozen=True)
class _Layout:
    """Where everything is, in inches."""

    centres: dict[str, Point]
    high: float  # of a box
    top: float
    bottom: float


def graph_picture(path: Path, drawn: Drawing, *, page: bool = False) -> None:
    """Draw it as PNG or SVG; for a `page`, an SVG takes its colours from that."""
    layout = _layout(drawn)
    right = max(x for x, _ in layout.centres.values()) + WIDE / 2
    lanes = [_lane(drawn, layout, edge) for edge in drawn.edges]
    low = min([layout.bottom, *(lane for lane in lanes if lane is not None)]) - 0.2
    high = max([layout.top, *(lane for lane in lanes if lane is not None)]) + 0.2
    figure, axes = blank(drawn.title)
    figure.set_size_inches(right + WIDE / 2 + 0.4, high - low + 0.6)
    axes.set_xlim(-WIDE / 2 - 0.1, right + 0.1)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    axes.set_axis_off()
    for edge, lane in zip(drawn.edges, lanes, strict=True):
        _arrow(axes, drawn, layout, edge, lane)
    for node in drawn.nodes:
        _box(axes, layout, node)
    save(figure, path, page=page, width=figure.get_figwidth())


def _layout(drawn: Drawing) -> _Layout:
    layers: dict[int, list[Node]] = defaultdict(list)
    for node in drawn.nodes:
        layers[node.layer].append(node)
    high = 0.42 + LINE * max(len(node.lines) for node in drawn.nodes)
    most = max(map(len, layers.values()))
    centres = {
        node.name: (layer * (WIDE + APART), ((len(nodes) - 1) / 2 - row) * (high + BETWEEN))
        for layer, nodes in layers.items()
        for row, node in enumerate(nodes)
    }
    edge = (most - 1) / 2 * (high + BETWEEN) + high / 2
    return _Layout(centres, high, edge, -edge)


def _lane(drawn: Drawing, layout: _Layout, edge: tuple[str, str, tuple[str, ...]]) -> float | None:
    """The height at which an arrow passes the layers between its ends; None where there is none."""
    before, after, _ = edge
    layer = {node.name: node.layer for node in drawn.nodes}
    if layer[after] - layer[before] <= 1:
        return None
    skipping = [each for each in drawn.edges if layer[each[1]] - layer[each[0]] > 1]
    above = [each for each in skipping if layout.centres[each[0]][1] + layout.centres[each[1]][1] >= 0]
    if edge in above:
        return layout.top + LANE * (1 + above.index(edge))
    below = [each for each in skipping if each not in above]
    return layout.bottom - LANE * (1 + below.index(edge))


def _arrow(
    axes: "Axes", drawn: Drawing, layout: _Layout, edge: tuple[str, str, tuple[str, ...]], lane: float | None
) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Line

    before, after, fields = edge
    (x0, y0), (x1, y1) = layout.centres[before], layout.centres[after]
    x0, x1 = x0 + WIDE / 2, x1 - WIDE / 2
    leaving = [
        (other, layout.centres[other][1] if gone is None else gone) for other, gone in _ends(drawn, layout, before)
    ]
    arriving = [
        (other, layout.centres[other][1] if gone is None else gone) for other, gone in _begins(drawn, layout, after)
    ]
    y0, y1 = y0 + _offset(leaving, after, layout.high), y1 + _offset(arriving, before, layout.high)
    if lane is None:
        points, codes = [(x0, y0), (x1, y1)], [Line.MOVETO, Line.LINETO]
        label = (x0 + 0.42 * (x1 - x0), y0 + 0.42 * (y1 - y0))
    else:
        out, back, half = x0 + APART * 0.8, x1 - APART * 0.8, APART * 0.4
        points = [
            (x0, y0), (x0 + half, y0), (out - half, lane), (out, lane),
            (back, lane), (back + half, lane), (x1 - half, y1), (x1, y1),
        ]  # fmt: skip
        codes = [Line.MOVETO, *[Line.CURVE4] * 3, Line.LINETO, *[Line.CURVE4] * 3]
        label = ((out + back) / 2, lane)
    axes.add_patch(
        FancyArrowPatch(
            path=Line(points, codes),
            arrowstyle="-|>",
            mutation_scale=11,
            color=GREY,
            linewidth=1.1,
            shrinkA=0,
            shrinkB=0,
        )
    )
    axes.text(
        *label, "\n".join(fields), fontsize=8, color=INK, ha="center", va="center", zorder=3,
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.5},
    )  # fmt: skip


def _ends(drawn: Drawing, layout: _Layout, name: str) -> list[tuple[str, float | None]]:
    return [(edge[1], _lane(drawn, layout, edge)) for edge in drawn.edges if edge[0] == name]


def _begins(drawn: Drawing, layout: _Layout, name: str) -> list[tuple[str, float | None]]:
    return [(edge[0], _lane(drawn, layout, edge)) for edge in drawn.edges if edge[1] == name]


def _offset(others: list[tuple[str, float]], other: str, high: float) -> float:
    """How far from its middle a box's side is touched: by the arrow that goes highest at the top."""
    order = [name for name, _ in sorted(others, key=lambda one: -one[1])]
    return 0.6 * high * (0.5 - (order.index(other) + 0.5) / len(order))


def _box(axes: "Axes", layout: _Layout, node: Node) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = layout.centres[node.name]
    color, left, top = CALLS.get(node.name, GREY), x - WIDE / 2, y + layout.high / 2 - 0.2
    axes.add_patch(
        FancyBboxPatch(
            (left, y - layout.high / 2),
            WIDE,
            layout.high,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=PAPER,
            edgecolor=color,
            linewidth=2.4,
            zorder=4,
        )
    )
    axes.text(left + 0.12, top, node.name, fontsize=11, fontweight="bold", color=INK, va="center", zorder=5)
    axes.text(left + WIDE - 0.12, top, node.model, fontsize=9, color=GREY, ha="right", va="center", zorder=5)
    for row, line in enumerate(node.lines):
        axes.text(left + 0.12, top - 0.27 - LINE * row, _cut(line), fontsize=8, color=INK, va="center", zorder=5)


def _cut(line: str, most: int = 38) -> str:
    return line if len(line) <= most else f"{line[: most - 1]}…"
