"""Checkpoints: the newest intact one is found whatever happened to the others or to their writer."""

import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fsspec.core import url_to_fs
from pydantic import ValidationError

from infra.runs import checkpoints
from infra.storage import place as places
from infra.storage import store
from infra.storage.manifest import NotThere, Torn


def state(tmp_path: Path, step: int) -> Path:
    """A folder such as a trainer saves, whose every byte tells its step."""
    folder = tmp_path / f"made-{step}"
    folder.mkdir()
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        (folder / name).write_text(f"{name} {step}\n" * 100)
    return folder


def save_all(run: str, tmp_path: Path, steps: list[int], keep_last: int = 10) -> None:
    for step in steps:
        checkpoints.save(run, step, state(tmp_path, step), {"step": step}, keep_last)


def unexpected(line: str) -> None:
    raise AssertionError(line)


def test_the_newest_is_found_by_number(place: str, tmp_path: Path) -> None:
    assert checkpoints.newest(place, warn=unexpected) is None
    save_all(place, tmp_path, [9, 999, 1000])
    found = checkpoints.newest(place, warn=unexpected)
    assert found is not None
    with found as folder:
        assert folder.manifest.meta == {"step": 1000}
        assert (folder.path / "state.json").read_text().startswith("state.json 1000\n")
    with checkpoints.load(place, 9) as folder:
        assert folder.manifest.meta == {"step": 9}
    with pytest.raises(NotThere, match=r"state/10: it has no manifest.json"):
        checkpoints.load(place, 10)


def test_a_step_may_be_padded_with_zeros(place: str, tmp_path: Path) -> None:
    store.write_folder(f"{place}/state/000012", state(tmp_path, 12), meta={"step": 12})
    with checkpoints.load(place, 12) as folder:
        assert folder.manifest.meta == {"step": 12}


def test_only_the_last_are_kept(place: str, tmp_path: Path) -> None:
    save_all(place, tmp_path, [998, 999, 1000, 1001], keep_last=2)
    assert store.versions(f"{place}/state") == [1000, 1001]
    assert sorted({version.number for version in store.list_versions(f"{place}/state")}) == [1000, 1001]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "manifest garbage", "manifest missing"])
def test_a_torn_one_is_skipped_with_a_warning(place: str, tmp_path: Path, damage: str) -> None:
    save_all(place, tmp_path, [999, 1000])
    name = "manifest.json" if "manifest" in damage else "optimizer.safetensors"
    fs, root = url_to_fs(f"{place}/state/1000/{name}")
    data = fs.cat_file(root)
    if "missing" in damage:
        fs.rm_file(root)
    else:
        fs.pipe_file(root, {"t": data[:100], "f": data[:-1] + b"\0", "m": b"{not JSON"}[damage[0]])
    lines: list[str] = []
    found = checkpoints.newest(place, warn=lines.append)
    assert found is not None
    with found as folder:
        assert folder.manifest.meta == {"step": 999}
    (line,) = lines
    assert line.startswith("checkpoint 1000 is skipped: ")
    assert name in line
    assert "\n" not in line


def test_none_is_intact(tmp_path: Path) -> None:
    run = tmp_path / "run"
    save_all(str(run), tmp_path, [9, 10])
    for step in (9, 10):
        (run / "state" / str(step) / "state.json").unlink()
    lines: list[str] = []
    assert checkpoints.newest(str(run), warn=lines.append) is None
    assert [line.split(":")[0] for line in lines] == ["checkpoint 10 is skipped", "checkpoint 9 is skipped"]


def test_going_back_forgets_the_future(place: str, tmp_path: Path) -> None:
    """With one kept, a torn newer one must not push out what was just saved, nor an intact one pass for the newest."""
    save_all(place, tmp_path, [1, 2, 3, 4])
    fs, root = url_to_fs(f"{place}/state/4/state.json")
    fs.rm_file(root)
    checkpoints.save(place, 2, state(tmp_path, 2), {"step": 2, "again": True}, keep_last=1)
    found = checkpoints.newest(place, warn=unexpected)
    assert found is not None
    with found as folder:
        assert folder.manifest.meta == {"step": 2, "again": True}
    assert store.versions(f"{place}/state") == [2]


WRITER = """
import sys
from pathlib import Path
from infra.runs import checkpoints
run, made, step = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
while True:
    step += 1
    made.mkdir(parents=True, exist_ok=True)
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        (made / name).write_text(f"{name} {step}\\n" * 5000)
    print("begins", step, flush=True)
    checkpoints.save(run, step, made, {"step": step}, keep_last=2)
    print("ends", step, flush=True)
"""


def kill_while_writing(run: str, made: Path, step: int, chance: random.Random) -> int:
    """Let a writer go on from `step`, kill it in the middle; return the last step that it called complete."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, run, str(made), str(step)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        for _ in range(chance.randrange(1, 12)):
            assert child.stdout.readline(), "the writer ended by itself"
        for _ in range(chance.randrange(100_000)):  # up to a few milliseconds, about what a write takes
            pass
    finally:
        os.killpg(child.pid, signal.SIGKILL)
    said = child.stdout.read().splitlines()
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    return max([step, *(int(line.split()[1]) for line in said if line.startswith("ends"))])


@pytest.mark.slow
@pytest.mark.parametrize(("where", "kills"), [("file", 15), ("s3", 3)])
def test_kill_9_in_the_middle_of_a_write_loses_no_complete_step(
    request: pytest.FixtureRequest, tmp_path: Path, where: str, kills: int
) -> None:
    run = str(tmp_path / "run") if where == "file" else request.getfixturevalue("s3") + "/run"
    chance = random.Random(17)
    step, lines = 0, []
    for _ in range(kills):
        complete = kill_while_writing(run, tmp_path / "made", step, chance)
        found = checkpoints.newest(run, warn=lines.append)
        if found is None:
            assert complete == 0
            continue
        with found as folder:
            step = folder.manifest.meta["step"]
            assert step >= complete
            for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
                assert (folder.path / name).read_text() == f"{name} {step}\n" * 5000
    assert step > kills
    if where == "file":
        assert lines == []  # a local write shows itself whole or not at all
        checkpoints.save(run, step + 1, state(tmp_path, step + 1), {}, keep_last=1)
        assert [path.name for path in (tmp_path / "run" / "state").iterdir()] == [str(step + 1)]


def test_what_is_a_run(place: str) -> None:
    assert not checkpoints.is_run(place)
    with pytest.raises(checkpoints.NotARun, match=r"run is not a run: there is nothing$") as raised:
        checkpoints.require_run(place)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    places.write_text(f"{place}/notes.txt", "mine")
    with pytest.raises(checkpoints.NotARun, match=r"run is not a run: it has no config.yaml$"):
        checkpoints.require_run(place)
    places.write_text(f"{place}/config.yaml", "steps: 1\n")
    assert checkpoints.is_run(place)
    checkpoints.require_run(place + "/")


def test_a_run_is_named_by_uri_path_or_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = str(tmp_path / "home" / "runs")
    for uri in ("s3://bucket/run", "memory://run", "/data/a"):
        assert checkpoints.resolve_run(uri, home) == uri
    for path in ("runs/a", "./a", "runs/a/"):  # workers may stand elsewhere
        assert checkpoints.resolve_run(path, home) == str(tmp_path / path)
    assert checkpoints.resolve_run("~/a", home) == str(Path("~/a").expanduser())
    assert checkpoints.resolve_run("s3://bucket/run/", home) == "s3://bucket/run"
    assert checkpoints.resolve_run("a", home) == f"{home}/a"
    places.write_text("a/config.yaml", "")
    assert checkpoints.resolve_run("a", home) == str(tmp_path / "a")
    places.write_text(f"{home}/a/config.yaml", "")
    assert checkpoints.resolve_run("a", home) == f"{home}/a"


def test_how_many_are_kept_is_at_least_one() -> None:
    assert checkpoints.CheckpointConfig().keep_last == 2
    with pytest.raises(ValidationError):
        checkpoints.CheckpointConfig(keep_last=0)


@pytest.mark.parametrize("meta", [{}, {"step": "x", "reward": 1.0}, {"step": 3}, {"step": 3, "reward": [1]}])
def test_a_best_version_that_does_not_say_which_it_is_is_torn(tmp_path, meta):
    made = tmp_path / "made"
    made.mkdir()
    (made / "model.safetensors").write_bytes(b"best")
    store.write_folder(f"{tmp_path}/run/{checkpoints.BEST}", made, meta=meta)
    with pytest.raises(Torn, match="does not say which version it is; remove it"):
        checkpoints.best_version(f"{tmp_path}/run")


def test_one_that_is_removed_while_it_is_read_leads_to_the_next(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one kept: who was just succeeded had begun to save another."""
    save_all(place, tmp_path, [7], keep_last=1)
    read = store.read_folder

    def overtaken(uri: str) -> store.Folder:
        if uri.endswith("/7"):
            save_all(place, tmp_path, [8], keep_last=1)
        return read(uri)

    monkeypatch.setattr(store, "read_folder", overtaken)
    found = checkpoints.newest(place, warn=lambda _: None)
    assert found is not None
    with found as folder:
        assert folder.manifest.meta == {"step": 8}
