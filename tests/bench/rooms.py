"""Draw docs/rooms.png: the rooms of the four packages, each above what it imports, with its lines of code.

python -m tests.bench.rooms
"""

from graphlib import TopologicalSorter
from pathlib import Path

from matplotlib.patches import Rectangle

from flows.report.pictures import BLUE, GREY, INK, PALE, blank, save
from tests.test_layers import rooms

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "tasks", "rl", "infra")
ROW, GAP, WIDTH = 0.44, 0.2, 12.0  # a row's height, the space between packages, and the width of the picture


def levels(package: str) -> list[list[str]]:
    """The rooms, those that import no other last."""
    names = rooms(package)
    height: dict[str, int] = {}
    for room in TopologicalSorter(names).static_order():
        height[room] = 1 + max((height[below] for below in names.get(room, ())), default=-1)
    rows = [
        [room for room in height if height[room] == at and room != "__init__"] for at in range(max(height.values()) + 1)
    ]
    return [sorted(row) for row in reversed(rows) if row]


def lines(path: Path) -> int:
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)


def main() -> None:
    columns = {"flows": (0.0, WIDTH), "tasks": (0.0, WIDTH), "rl": (0.0, WIDTH * 0.48), "infra": (WIDTH * 0.5, WIDTH)}
    bands = {package: levels(package) for package in PACKAGES}
    heights = {package: len(rows) * ROW + 0.5 for package, rows in bands.items()}
    bottom = max(heights["rl"], heights["infra"])
    tops = {"rl": bottom, "infra": bottom, "tasks": bottom + GAP + heights["tasks"]}
    tops["flows"] = tops["tasks"] + GAP + heights["flows"]
    figure, axes = blank(
        "Each room above what it imports; beside its name its lines of code", height=tops["flows"] * 0.95
    )
    axes.set_axis_off()
    axes.set_xlim(-0.1, WIDTH + 0.1)
    axes.set_ylim(-0.1, tops["flows"] + 0.1)
    for package, rows in bands.items():
        left, right = columns[package]
        top = tops[package]
        depth = bottom if package in ("rl", "infra") else heights[package]
        axes.add_patch(Rectangle((left, top - depth), right - left, depth, facecolor="none", edgecolor=BLUE))
        axes.text(left + 0.12, top - 0.2, f"{package}/", color=BLUE, fontsize=10, weight="bold", va="center")
        for number, row in enumerate(rows):
            share = (right - left - 0.2) / len(row)
            y = top - 0.42 - number * ROW
            for at, room in enumerate(row):
                folder = (ROOT / package / room).is_dir()
                x = left + 0.1 + at * share + 0.04
                color = PALE if folder else "white"
                place, size = (x, y - ROW + 0.09), (share - 0.08, ROW - 0.05)
                axes.add_patch(Rectangle(place, *size, facecolor=color, edgecolor=GREY, linewidth=0.6))
                middle = x + share / 2 - 0.04
                points = min(7.5, 76 * share / len(f"{room}/"))  # the name is no wider than its box
                said = {"ha": "center", "va": "center"}
                axes.text(middle, y - 0.1, room + ("/" if folder else ""), color=INK, fontsize=points, **said)
                axes.text(middle, y - 0.245, str(lines(ROOT / package / room)), color=GREY, fontsize=5.5, **said)
    save(figure, ROOT / "docs" / "rooms.png")


if __name__ == "__main__":
    main()
