import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.runs import rollouts
from infra.runs.metric_log import MetricLog
from infra.runs.record import METRICS, bring_record, read_record, send_record, send_tail
from infra.runs.rollouts import Row, kept_steps, read_rollouts, remove_rollouts_after, write_rollouts

ROWS = [{"prompt": "add 1 and 2", "completion": "</script>\n☃\ud800", "reward": None, "tokens": 3}]


def test_completions_are_kept_by_step(tmp_path: Path) -> None:
    for uri in (str(tmp_path / "run"), "memory://rollouts/run"):
        assert kept_steps(uri) == []
        assert read_rollouts(uri, 1) == []
        for step in (10, 2, 10):  # a step that is done again replaces its file
            write_rollouts(uri, step, ROWS)
        assert kept_steps(uri) == [2, 10]
        (row,) = read_rollouts(uri, 10)
        assert row["completion"].startswith("</script>\n☃")
        assert row["reward"] is None


def test_the_same_completions_make_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_rollouts(str(tmp_path / name), 1, ROWS)
    first, second = ((tmp_path / name / "rollouts" / "1.jsonl.gz").read_bytes() for name in "ab")
    assert first == second
    assert json.loads(gzip.decompress(first))["tokens"] == 3  # anybody can read it


PACKED = gzip.compress(b"{}\n", mtime=0)


@pytest.mark.parametrize(
    "damaged",
    [
        b"no gzip",
        b"\x1f\x8b\x08 no",
        PACKED[:-9],
        PACKED[:10] + b"\xff" * 20,
        PACKED[:-8] + b"\0" * 8,
    ],
    ids=["other bytes", "a header", "cut off", "cannot be unpacked", "other checksum"],
)
def test_a_damaged_file_is_named(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "3.jsonl.gz").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"rollouts/3.jsonl.gz is damaged"):
        read_rollouts(str(tmp_path), 3)


def member(text: str) -> bytes:
    """Of a file of any number of these, as gzip has it."""
    return gzip.compress(text.encode(), mtime=0)


@pytest.mark.parametrize(
    ("bomb", "why"),
    [
        (member(" " * 2**20) * 1024, r"a line has more than 8388608 bytes, which no completion has"),
        (member("{}\n" * 2**19) * 1024, r"it holds more than 4194304 bytes, which no step's completions are"),
        (member("[" * 100_000 + "\n"), r"maximum recursion depth"),
    ],
    ids=["one line", "many lines", "nested"],
)
def test_a_few_bytes_that_unpack_to_any_number_take_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: bytes, why: str
) -> None:
    monkeypatch.setattr(rollouts, "MOST_BYTES", 2**22)
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "3.jsonl.gz").write_bytes(bomb)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=rf"rollouts/3\.jsonl\.gz is damaged: .*{why}") as refused:
            read_rollouts(str(tmp_path), 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "\n" not in str(refused.value)
    assert peak < 2**28  # of 1 GiB and more


def test_what_is_no_row_of_numbers_and_texts_is_an_empty_one(tmp_path: Path) -> None:
    nested = [["x"] * 1000, {"a": [[]] * 1000}, {str(name): 1 for name in range(1000)}]
    write_rollouts(str(tmp_path), 1, [*nested, {"tokens": 3}])  # type: ignore[list-item]
    assert read_rollouts(str(tmp_path), 1) == [{}, {}, {}, {"tokens": 3}]


def test_a_record_follows_a_run_that_lies_elsewhere(tmp_path: Path) -> None:
    uri, here, there = "memory://records/run", tmp_path / "here", tmp_path / "there"
    here.mkdir()
    first = '{"step": 1, "time": 5, "reward/mean": 0.5}\n'
    (here / "metrics.jsonl").write_text(first)
    send_record(uri, here)
    bring_record(uri, there)
    assert (there / "metrics.jsonl").read_text() == first
    (there / "metrics.jsonl").write_text(first + '{"step": 2, "time": 6, "reward/mean": 0.6}\n')
    (there / "about.json").write_text('{"status": "stopped"}')
    assert read_record(uri, there).steps == [1, 2]  # it went on there, and what lies elsewhere is older
    send_record(uri, there)
    bring_record(uri, here)
    record = read_record(uri, here)
    assert record.curve("reward/mean") == {1: 0.5, 2: 0.6}
    assert record.about == {"status": "stopped"}
    assert record.sessions == ()


def test_what_came_since_the_last_copy_is_there_at_every_step(s3: str, tmp_path: Path) -> None:
    uri, here, there = f"{s3}/run", tmp_path / "here", tmp_path / "there"
    log = MetricLog(here / METRICS)
    log.append(1, {"reward/mean": 0.1})
    sent = send_record(uri, here)
    for step in (2, 3):
        log.append(step, {"reward/mean": step / 10})
        send_tail(uri, here, sent)
        assert read_record(uri, there).curve("reward/mean") == {at: at / 10 for at in range(1, step + 1)}
    bring_record(uri, there)
    other = MetricLog(there / METRICS)
    other.append(4, {"reward/mean": 0.4})
    send_record(uri, there)
    assert read_record(uri, here).curve("reward/mean") == {at: at / 10 for at in range(1, 5)}


def test_the_storage_counts_where_this_machine_has_another_future(s3: str, tmp_path: Path) -> None:
    uri, here, there = f"{s3}/run", tmp_path / "here", tmp_path / "there"
    log = MetricLog(here / METRICS)
    for step in range(1, 9):
        log.append(step, {"reward/mean": 0.1})
    other = MetricLog(there / METRICS)
    for step in range(1, 4):
        other.append(step, {"reward/mean": 0.2})
    send_record(uri, there)
    bring_record(uri, here)
    assert read_record(uri, here).curve("reward/mean") == {1: 0.2, 2: 0.2, 3: 0.2}


def test_completions_of_steps_that_are_made_again_go(place: str) -> None:
    for step in (1, 2, 10):
        write_rollouts(place, step, [])
    remove_rollouts_after(place, 2)
    assert kept_steps(place) == [1, 2]


def test_nothing_is_written_where_the_run_went_away_while_rows_were_packed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()

    def rows() -> Iterator[Row]:
        run.rename(tmp_path / "away")
        yield from ROWS

    def check() -> None:
        if not run.exists():
            raise OSError("the run is away")

    with pytest.raises(OSError, match="away"):
        write_rollouts(str(run), 1, rows(), check)
    assert not run.exists()
