import json
from pathlib import Path

import pytest

from infra.cluster import timeline
from infra.cluster.timeline import Span, Timeline, begin_session, read_sessions, write_spans

SPANS = [
    Span("generator-0", "generate", 100.0, 106.0, loading=2.0, fetched=1000),
    Span("generator-0", "generate", 108.0, 110.0, lost=True),
    Span("trainer", "train", 101.0, 110.0),
]


def test_sessions_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "run" / "timeline.jsonl"
    begin_session(path)
    write_spans(path, SPANS[:1])
    write_spans(path, [])
    begin_session(path)
    begin_session(path)  # one in which nothing was done
    write_spans(path, SPANS[1:])
    with path.open("a") as file:
        file.write('{"worker": "cut by a ki')
    assert read_sessions(path.read_text()) == [SPANS[:1], SPANS[1:]]
    assert read_sessions("") == []


def test_the_file_of_a_long_run_stays_small_and_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "KEPT_BYTES", 4000)
    path = tmp_path / "timeline.jsonl"
    for second in range(500):
        write_spans(path, [Span("trainer", "train", second, second + 0.5)])
    assert path.stat().st_size <= 4000
    (kept,) = read_sessions(path.read_text())
    assert [span.start for span in kept] == [float(at) for at in range(500 - len(kept), 500)]
    assert len(kept) > 20


def test_spans_that_nobody_writes_do_not_fill_the_memory() -> None:
    line = Timeline()
    for second in range(timeline.UNWRITTEN + 5):
        line.add(Span("trainer", "train", second, second + 1))
    taken = line.take()
    assert len(taken) == timeline.UNWRITTEN
    assert taken[-1].start == timeline.UNWRITTEN + 4
    assert line.take() == []


def test_a_span_is_one_line_of_json(tmp_path: Path) -> None:
    write_spans(tmp_path / "timeline.jsonl", SPANS)
    lines = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert lines[1] == {"worker": "generator-0", "call": "generate", "start": 108.0, "end": 110.0, "lost": True}
