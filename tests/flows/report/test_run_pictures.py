from pathlib import Path

import pytest
from PIL import Image

from flows.report.run_pictures import (
    MOST_WORKERS,
    amount,
    busiest,
    bytes_picture,
    stage_picture,
    staleness_picture,
    timeline_picture,
    worker_picture,
    worker_shares,
)
from infra.cluster.timeline import Span

SPANS = [
    Span("generator-0", "generate", 100.0, 106.0, loading=2.0, fetched=1000),
    Span("generator-0", "generate", 108.0, 110.0, lost=True),
    Span("trainer", "train", 101.0, 110.0),
]


def test_shares_say_what_a_worker_waited_for() -> None:
    shares = worker_shares(SPANS)
    assert shares["generator-0"] == pytest.approx(
        {"generate": 0.4, "waiting for weights": 0.2, "lost": 0.2, "waiting for work": 0.2}
    )
    assert shares["trainer"] == pytest.approx({"train": 0.9, "waiting for work": 0.1})
    assert worker_shares([]) == {}


def test_of_thousands_of_workers_the_busiest_are_shown() -> None:
    idle = [Span(f"idle-{at}", "generate", at, at + 0.1) for at in range(3000)]
    busy = [Span(f"busy-{at}", "generate", 0.0, 50.0 + at) for at in range(MOST_WORKERS)]
    assert busiest([*idle, *busy, *busy]) == [*busy, *busy]
    assert busiest(SPANS) == SPANS


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 900])
def test_the_pictures_of_short_and_long_runs_are_drawn(
    tmp_path: Path, steps: int, recwarn: pytest.WarningsRecorder
) -> None:
    curve = {step: 0.5 + step % 3 for step in range(1, steps + 1)}
    stage_picture(tmp_path / "a.png", {"rollouts": curve, "update": dict(list(curve.items())[1:])}, title="a")
    bytes_picture(tmp_path / "b.png", {"published": curve, "read": {}}, title="b")
    staleness_picture(tmp_path / "c.png", curve, curve, title="c")
    spans = [Span(f"w{at % 3}", "generate", at, at + 0.7, loading=0.1) for at in range(steps)]
    worker_picture(tmp_path / "d.png", worker_shares(spans), title="d")
    timeline_picture(tmp_path / "e.png", spans, title="e")
    for name in "abcde":
        with Image.open(tmp_path / f"{name}.png") as image:
            assert image.format == "PNG"
            assert image.width == 1200
            assert len(image.getcolors(2**24) or []) > 10
    assert not recwarn.list


def test_bytes_for_people() -> None:
    assert [amount(count) for count in (0, 999, 1500, 3_660_000, 1.2e9, 5e15)] == [
        "0 B", "999 B", "1.5 KB", "3.66 MB", "1.2 GB", "5e+03 TB",
    ]  # fmt: skip
