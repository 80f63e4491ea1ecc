"""Logs are set aside when they are large and removed when they are old."""

import logging
import os
import time
from pathlib import Path

import pytest

from infra import logs
from infra.cluster.role import LogFile, logs_to
from infra.logs import log_at


def test_a_large_log_is_set_aside_and_an_old_one_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LARGEST", 100)
    path = tmp_path / "logs" / "dask.log"
    for content in (b"x" * 101, b"y" * 101):
        log_at(path).write_bytes(content)
    old, recent, other = (path.with_name(name) for name in ("gone.log.1", "generator-0.log", "notes.txt"))
    month = time.time() - 40 * 86400
    for each in (old, recent, other):
        each.write_text("a line")
    for each in (old, other):
        os.utime(each, (month, month))
    assert log_at(path) == path
    assert path.with_name("dask.log.1").read_bytes() == b"y" * 101
    assert not path.exists()
    assert (old.exists(), recent.exists(), other.exists()) == (False, True, True)
    path.write_bytes(b"short")
    assert log_at(path).read_bytes() == b"short"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full: Linux")
def test_a_log_on_a_full_disk_fills_no_screen(capsys: pytest.CaptureFixture[str]) -> None:
    log = LogFile("/dev/full")
    log.emit(logging.makeLogRecord({"msg": "a line"}))
    log.close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("configured", [True, False])
def test_dask_logs_to_the_file_once_whoever_configured_logging_first(
    configured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    head, one = logging.getLogger("distributed"), logging.getLogger("distributed.scheduler")
    for each in (head, one):
        monkeypatch.setattr(each, "handlers", [logging.NullHandler()] if configured else [])
        monkeypatch.setattr(each, "propagate", not configured)
        monkeypatch.setattr(each, "disabled", False)
    before = [(each.handlers[:], each.propagate) for each in (head, one)]
    with logs_to(tmp_path / "dask.log"):
        one.warning("an old one")
        logging.getLogger(f"distributed.{tmp_path.name}").warning("a new one")
    lines = (tmp_path / "dask.log").read_text().splitlines()
    assert [line.partition("WARNING ")[2] for line in lines] == ["an old one", "a new one"]
    assert not caplog.records
    assert [(each.handlers, each.propagate) for each in (head, one)] == before
