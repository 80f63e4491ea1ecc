"""What the sandboxes show, as it stands and to a living verifier."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl.verifiers.isolation import second_paths
from rl.verifiers.isolation import shown as views
from rl.verifiers.isolation.sandbox import BUBBLEWRAP, LANDLOCK
from rl.verifiers.isolation.shown import Folder, Mask, Tree, shown
from tests.rl.verifiers.isolation.test_hostile import DROPS, as_another

ROOT = Path(__file__).parents[4]


def trees(closed: list[Path], kept: list[Path], below: Path) -> list[str]:
    seen = shown(map(str, closed), map(str, kept))
    return [one.path for one in seen if isinstance(one, Tree) and Path(one.path).is_relative_to(below)]


def test_the_longest_path_decides(tmp_path: Path) -> None:
    home = tmp_path.resolve() / "me"
    for name in ("me/venv/lib", "me/proj/.rlvf", "me/proj/src", "beside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "named").symlink_to("me/proj")
    closed, kept = [home, home / "proj" / ".rlvf"], [home / "venv", tmp_path / "named"]
    ours = trees(closed, kept, tmp_path)
    assert ours == [f"{tmp_path}/beside", f"{home}/proj/src", f"{home}/venv", f"{tmp_path}/named/src"]
    assert Folder(str(home), 0o755) in shown(map(str, closed), map(str, kept))


def test_a_top_that_may_not_be_listed_shows_what_is_named_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> Iterator[Path]:
        raise PermissionError

    monkeypatch.setattr(Path, "iterdir", refused)  # as one sandbox has it within another
    assert trees([Path("/dev/shm"), Path("/tmp/x")], [Path("/usr"), Path("/tmp/y")], Path("/")) == ["/usr"]
    assert trees([Path("/")], [Path("/usr")], Path("/")) == ["/usr"]


def test_of_a_folder_with_very_many_entries_only_what_is_kept_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MOST", 3)
    for number in range(5):
        (tmp_path / f"user{number}" / "venv").mkdir(parents=True)
    ours = trees([tmp_path / "user1"], [tmp_path / "user1" / "venv", tmp_path / "user2"], tmp_path)
    assert ours == [f"{tmp_path}/user1/venv", f"{tmp_path}/user2"]


def test_all_of_a_kept_folder_is_shown_however_much_is_in_it(tmp_path: Path) -> None:
    files = [tmp_path / "proj" / f"{number}.txt" for number in range(600)]
    (tmp_path / "proj" / ".rlvf").mkdir(parents=True)
    for file in files:
        file.touch()
    beside = tmp_path / "proj" / ".rlvf.json"  # only a file has copies of its name
    beside.touch()
    seen = trees([tmp_path, tmp_path / "proj" / ".rlvf"], [tmp_path / "proj"], tmp_path)
    assert {str(file) for file in (*files, beside)} <= set(seen)
    assert str(tmp_path / "proj" / ".rlvf") not in seen


def test_in_one_tree_of_very_many_entries_what_is_closed_is_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MOST", 3)
    at = tmp_path.resolve()
    for name in ("proj/.rlvf/kept", "proj/.rlvf/other", "proj/src"):
        (at / name).mkdir(parents=True)
    for name in ("proj/a", "proj/b", "proj/key", "proj/key.lock", "proj/src/.netrc"):
        (at / name).touch()
    (at / "proj" / "link").symlink_to(".rlvf")
    closed = [at, *(at / "proj" / name for name in (".rlvf", "key", "src/.netrc", "link", "absent"))]
    seen = shown(map(str, closed), [str(at / "proj"), str(at / "proj/.rlvf/kept")], covered=True)
    assert [one for one in seen if Path(one.path).is_relative_to(at)] == [
        Folder(str(at), 0o755),
        Tree(f"{at}/proj"),
        Folder(f"{at}/proj/.rlvf", 0o755, covers=True),
        Tree(f"{at}/proj/.rlvf/kept"),
        Mask(f"{at}/proj/key"),
        Mask(f"{at}/proj/key.lock"),
        Mask(f"{at}/proj/src/.netrc"),
    ]


MOUNTS = """\
22 1 254:0 / / rw - ext4 /dev/a rw
23 22 0:30 /export/home /home rw - nfs4 server:/export/home rw
24 22 0:30 /export /nfs rw - nfs4 server:/export rw
25 22 0:30 /export/home/me/big\\040data /data rw - nfs4 server:/x rw
26 23 0:30 /export/home/me/other /home/me/again rw - nfs4 server:/x rw
27 22 0:31 / /apart rw - ext4 /dev/b rw
28 23 0:31 /private /home/you/private rw - ext4 /dev/b rw
"""


def test_a_place_has_its_other_paths_and_those_of_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_paths, "MOUNTS", tmp_path / "mountinfo")
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert second_paths.of([Path("/home/me")]) == [Path("/nfs/home/me"), Path("/data"), Path("/nfs/home/me/other")]
    assert second_paths.of([Path("/data/keys")]) == [Path("/home/me/big data/keys"), Path("/nfs/home/me/big data/keys")]
    assert second_paths.of([Path("/home/you")]) == [Path("/nfs/home/you"), Path("/apart/private")]
    assert second_paths.of([Path("/srv"), Path("/apart/x")]) == []


@pytest.fixture
def crowded() -> Iterator[Path]:
    """A project folder of very many files around the home of rlvf, where another user may look."""
    at = Path("/srv" if os.access("/srv", os.W_OK) else "/var/tmp") / f"rlvf-crowded-{os.getpid()}"
    for name in ("proj/.rlvf", "tmp", "me"):
        (at / name).mkdir(parents=True)
    for number in range(1600):
        (at / "proj" / f"a file with a name that is long enough to be one of somebody's data {number}").touch()
    for name in ("proj/reward.py", "proj/table.json", "proj/.rlvf/kept", "proj/.netrc"):
        (at / name).write_text(f"was {name}")
    for path in (at, *at.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    yield at
    shutil.rmtree(at)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no sandbox elsewhere")
@pytest.mark.parametrize("sandbox", [BUBBLEWRAP, LANDLOCK])
def test_a_verifier_of_a_crowded_folder_is_loaded_and_sees_all_but_what_is_closed(sandbox: str, crowded: Path) -> None:
    asked = {name: str(crowded / "proj" / name) for name in ("table.json", ".rlvf/kept", ".rlvf/later", ".netrc")}
    given = {"home": str(crowded / "proj" / ".rlvf"), "file": str(crowded / "proj" / "reward.py")}
    told = json.dumps(
        {**given, "asked": [*asked.values()], "reads": [], "written": [asked[".rlvf/later"]], "renamed": []}
    )
    command = [sys.executable, str(Path(__file__).with_name("secret_reader.py")), sandbox, told]
    if os.geteuid() == 0 and shutil.which("unshare") and shutil.which("setpriv"):
        command = as_another(DROPS["user"], command, crowded)
    env = {**os.environ, "HOME": str(crowded / "me"), "TMPDIR": str(crowded / "tmp"), "PYTHONPATH": str(ROOT)}
    env |= {"NETRC": asked[".netrc"], "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, cwd=crowded, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    if "missing" in answers:
        pytest.skip(answers["missing"])
    for when in ("before", "after"):
        assert answers[when][asked["table.json"]] == "was proj/table.json"
        for name in (".rlvf/kept", ".rlvf/later", ".netrc"):
            assert answers[when][asked[name]] in ("FileNotFoundError", "PermissionError")
