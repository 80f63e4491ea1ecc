"""Draw docs/weights.png: which stored folder leads to which version. The folders are those of a real publisher.

python tests/bench/chain.py
"""

import re
import tempfile
from pathlib import Path

import torch

from flows.report.pictures import BLUE, GREY, INK, ORANGE, blank, save
from infra.storage.place import subfolders
from infra.weights.publisher import Publisher
from infra.weights.version import SyncConfig

ROOT = Path(__file__).parents[2]
VERSIONS = 14
ANCHOR = 8


def folders() -> list[tuple[int, int]]:
    """(base, version) of every difference that a run of so many versions has stored at some time."""
    found = set()
    with tempfile.TemporaryDirectory() as run:
        files = Path(run, "files")
        files.mkdir()
        publisher = Publisher(run, SyncConfig(anchor_every=ANCHOR), window=VERSIONS, files=files)
        for step in range(VERSIONS):
            publisher.publish(step, {"w": torch.arange(4096.0).index_fill(0, torch.tensor([step]), -1.0)})
            publisher.finish()
            for name in subfolders(f"{run}/weights"):
                version, *base = map(int, re.findall(r"\d+", name))
                found.add((base[0] if base else version - 1, version))
        publisher.close()
    return sorted((base, version) for base, version in found if base >= 0)


def main() -> None:
    figure, axes = blank("Differences that a run stores, and the way of a newcomer to version 13", height=2.9)
    newcomer = {(0, 8), (8, 12), (12, 13)}
    for base, version in folders():
        color, width = (ORANGE, 2.4) if (base, version) in newcomer else (BLUE, 1.2)
        axes.annotate(
            "",
            xy=(version, 0.14),
            xytext=(base, 0.14),
            arrowprops={
                "arrowstyle": "-|>",
                "connectionstyle": "arc3,rad=-0.5",
                "color": color,
                "linewidth": width,
                "shrinkA": 6,
                "shrinkB": 6,
            },
        )
    axes.plot(range(VERSIONS), [0] * VERSIONS, "o", color=GREY, markersize=13)
    axes.plot([0], [0], "s", color=ORANGE, markersize=15)
    for step in range(VERSIONS):
        axes.text(step, -0.62, f"v{step}", ha="center", va="top", color=INK, fontsize=9)
    axes.text(0, -1.25, "whole", ha="center", va="top", color=ORANGE, fontsize=9)
    axes.set_xlim(-0.6, VERSIONS - 0.4)
    axes.set_ylim(-1.7, 2.6)
    axes.set_axis_off()
    save(figure, ROOT / "docs" / "weights.png")


if __name__ == "__main__":
    main()
