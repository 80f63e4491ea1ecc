"""Pictures of learning, drawn without a display and without matplotlib's global state."""

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, GRID = "#1f2933", "#6b7780", "#e3e7ea"
BLUE, ORANGE = "#2166ac", "#e08214"
SEEDS = (BLUE, ORANGE, "#1b7837", "#8e44ad", "#c0392b", "#0e8a8a")
PALE = "#a9c9e6"
SIZE_INCHES, DOTS_PER_INCH = (8.0, 4.5), 150
SMOOTH = 5  # steps whose mean reward is drawn dark
PAGE_INCHES = 4.7  # width of a drawing for a page: its text is as large as the page's on a telephone
# what a worker spends time on, as bars are stacked: no two are alike to the colour-blind (tests/flows/report)
CALLS = {
    "generate": BLUE,
    "evaluate": "#4d7cff",
    "greedy": "#a9cdff",
    "verify": "#104b06",
    "reward": "#a1b37d",
    "reference": "#07bdbf",
    "value": "#f5be00",
    "audit": "#4b0069",
    "train": ORANGE,
    "train_critic": "#400f00",
    "waiting for weights": "#9d78b2",
    "waiting for work": GRID,
    "lost": "#d63e18",
    "publish": "#774877",
}
THEME = {INK: "ink", GREY: "grey", GRID: "line", BLUE: "blue", ORANGE: "orange", PALE: "pale-blue", "#1b7837": "good",
         "#c0392b": "bad", "#8e44ad": "purple", "#0e8a8a": "teal", "#ffffff": "paper"}  # fmt: skip
THEME |= {color: call.replace(" ", "-") for call, color in CALLS.items() if color not in THEME}


def trailing_means(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value and the `window - 1` before it; nan where there are fewer, or where one is not finite."""
    means = [math.nan] * min(window - 1, len(values))
    for end in range(window, len(values) + 1):
        part = values[end - window : end]
        means.append(sum(part) / window if all(map(math.isfinite, part)) else math.nan)
    return means


def reward_curve(
    path: Path,
    steps: Sequence[int],
    sampled: Sequence[float],
    *,
    held_out: Sequence[tuple[int, float]] = (),
    title: str,
    label: str = "mean reward",
    held_out_label: str = "held out, greedy",
    to_one: bool = True,
) -> None:
    """Draw one run: the mean reward of each step pale, its mean over SMOOTH consecutive steps dark.

    `held_out` are (step, mean reward of greedy completions) on problems kept out of training. A reward that is not
    finite is a gap. `label` is what is plotted: of a reward the axis reaches `to_one` whatever it was, of a loss not.
    Raises ValueError where steps and sampled differ in length.
    """
    if len(steps) != len(sampled):
        raise ValueError(f"{len(steps)} steps and {len(sampled)} values: one of each is needed")
    known = [value for value in (*sampled, *(value for _, value in held_out)) if math.isfinite(value)]
    figure, axes = _from_zero(title, label, known, 1.0 if to_one else 0.0)
    if len(steps) < 2:  # a line needs two
        axes.set_xlim(0, max((1, *steps)))
    dot = "." if len(steps) < SMOOTH else None
    axes.plot(steps, sampled, color=BLUE, alpha=0.3, linewidth=1.1, marker=dot, label="each step")
    means = trailing_means(sampled, SMOOTH)
    axes.plot(steps, means, color=BLUE, linewidth=2.4, label=f"mean of {SMOOTH} steps")
    _name_end(axes, steps, means, BLUE, ".2f" if to_one else ".2g")
    if held_out:
        at, rates = zip(*held_out, strict=True)
        axes.plot(
            at,
            rates,
            color=ORANGE,
            linestyle=(0, (1, 2)),
            linewidth=1.2,
            marker="o",
            markersize=7,
            markeredgecolor="white",
            clip_on=False,
            zorder=4,
            label=held_out_label,
        )
    if path.suffix == ".svg":
        legend(axes)
        save(figure, path)
        return
    low, high = axes.get_ylim()
    ends_low = bool(known) and known[-1] < low + 0.4 * (high - low)
    if to_one:
        axes.legend(loc="upper left" if ends_low else "lower right", frameon=False, labelcolor=INK)
    else:  # a loss falls
        axes.legend(loc="upper right", frameon=False, labelcolor=INK)
    save(figure, path)


def blank(title: str, height: float = SIZE_INCHES[1]) -> "tuple[Figure, Axes]":
    """An empty picture in the house style, `height` inches high; the x-axis counts steps."""
    from matplotlib.figure import Figure  # here, because it takes a second to import
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(SIZE_INCHES[0], height), dpi=DOTS_PER_INCH, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK, pad=12, parse_math=False)
    axes.set_xlabel("step", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.01)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.tick_params(colors=GREY, length=0)
    return figure, axes


def _from_zero(title: str, label: str, known: Sequence[float], reach: float) -> "tuple[Figure, Axes]":
    """An empty picture whose y-axis spans 0 to ``reach`` and all ``known`` values."""
    figure, axes = blank(title)
    axes.set_ylabel(label, color=INK)
    low, high = min([0.0, *known]), max([reach, *known]) or 1.0
    axes.set_ylim(low * 1.05, high * 1.005)
    if (low, high, reach) == (0, 1, 1):
        axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    return figure, axes


def _name_end(axes: "Axes", steps: Sequence[int], means: Sequence[float], color: str, form: str) -> None:
    """Write the last mean at the end of its line."""
    known = [(step, mean) for step, mean in zip(steps, means, strict=True) if math.isfinite(mean)]
    if known:
        label = f"{known[-1][1]:{form}}"
        axes.annotate(
            label, known[-1], (14, 0), textcoords="offset points", color=color, fontweight="bold", va="center",
            annotation_clip=False,
        )  # fmt: skip


def legend(axes: "Axes") -> None:
    """Below the picture, where it covers nothing."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    columns = min(3, len(axes.get_legend_handles_labels()[1]))
    figure.legend(
        loc="outside lower left", ncols=columns, frameon=False, labelcolor=INK, handlelength=1.2, fontsize=9,
        columnspacing=1.2,
    )  # fmt: skip


def save(figure: "Figure", path: Path, *, page: bool = True, width: float = PAGE_INCHES) -> None:
    """Write a PNG, or an SVG for a page, under another name first: the picture may be looked at while it is drawn anew.

    An SVG is as narrow as a telephone (or `width` inches), has no title of its own, and takes its colours from the
    page's style: `--ink` and the others of THEME. One that is for no `page` is as the PNG.
    """
    import matplotlib
    from matplotlib.text import Text

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    with (
        _gone_at_the_end(draft),
        matplotlib.rc_context({"text.parse_math": False}),
        warnings.catch_warnings(),
    ):
        # a name with a $ is a name, those of ticks too, and one with a control character is not for the terminal
        warnings.filterwarnings("ignore", "Glyph")
        for text in figure.findobj(Text):
            text.set_parse_math(False)
        if path.suffix == ".svg":
            draft.write_text(_svg(figure, width) if page else _drawn(figure), encoding="utf-8")
        else:
            figure.savefig(draft, format="png")
        draft.replace(path)


@contextmanager
def _gone_at_the_end(draft: Path) -> Iterator[None]:
    try:
        yield
    finally:
        draft.unlink(missing_ok=True)


def _svg(figure: "Figure", width: float) -> str:
    """The drawing as an element of a page."""
    before, height = figure.get_size_inches()
    figure.set_size_inches(width, height * (width / before) ** 0.75)
    for axes in figure.axes:
        axes.set_title("", loc="left")
    drawn = _drawn(figure, transparent=True)
    drawn = drawn[drawn.index("<svg") :]
    for color, name in THEME.items():
        drawn = drawn.replace(color, f"var(--{name})")
    return drawn


def _drawn(figure: "Figure", transparent: bool = False) -> str:
    import matplotlib

    content = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(
            content, format="svg", transparent=transparent,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )  # fmt: skip
    return content.getvalue()
