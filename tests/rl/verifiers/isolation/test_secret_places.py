"""Secrets of a home and of the places that variables name are closed to a verifier that lives as they are written."""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rl.verifiers import opened as opened_module
from rl.verifiers.isolation import interpreter
from rl.verifiers.isolation.sandbox import BUBBLEWRAP, LANDLOCK
from rl.verifiers.isolation.secret_places import secret_places
from tests.rl.verifiers.isolation.test_hostile import DROPS, answers_of, as_another

ROOT = Path(__file__).parents[4]
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="no sandbox elsewhere")


@dataclass(frozen=True)
class Found:
    at: Path
    before: dict[str, str]
    after: dict[str, str]

    def of(self, name: str) -> tuple[str, str]:
        return self.before[str(self.at / name)], self.after[str(self.at / name)]


THERE = ("me/.netrc", "me/.aws/config", "hf/token", "keys/gcp.json", "rlvf/runs/a")
LATER = ("me/.aws/credentials", "me/.git-credentials", "late/hf/token", "proj/.rlvf/secrets.json", "keys/kube")
PLAIN = ("me/mine.txt", "me/.tool/lib", "proj/table.json", "keys/plain")


@pytest.fixture(scope="module", params=[BUBBLEWRAP, LANDLOCK])
def found(request: pytest.FixtureRequest) -> Found:
    at = Path("/srv" if os.access("/srv", os.W_OK) else "/var/tmp") / f"rlvf-secrets-{os.getpid()}"
    for name in (*THERE, *PLAIN, "proj/reward.py"):
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(f"was {name}")
    (at / "tmp").mkdir()
    (at / "alias").symlink_to("me")  # another way there
    (at / "second").mkdir()  # and another: see below
    for path in (at, *at.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    variables = {
        "HOME": "me",
        "HF_HOME": "hf",
        "HF_TOKEN_PATH": "late/hf/token",
        "RLVF_HOME": "proj/.rlvf",
        "GOOGLE_APPLICATION_CREDENTIALS": "keys/gcp.json",
        "TMPDIR": "tmp",
    }
    env = {**os.environ, **{name: str(at / value) for name, value in variables.items()}}
    env |= {"KUBECONFIG": f"{at}/nowhere:{at}/keys/kube", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    asked = [str(at / name) for name in (*THERE, *LATER, *PLAIN, "alias/.netrc", "second/.netrc", "keys/kube.lock")]
    given: dict[str, Any] = {"home": str(at / "rlvf"), "file": str(at / "proj" / "reward.py"), "asked": asked}
    given |= {"reads": [str(at / "me" / ".tool")], "written": [str(at / name) for name in LATER]}
    given["renamed"] = [str(at / "me/.netrc"), str(at / "keys/gcp.json")]
    reader = Path(__file__).with_name("secret_reader.py")
    command = [sys.executable, str(reader), request.param, json.dumps(given)]
    if os.geteuid() == 0 and shutil.which("unshare") and shutil.which("setpriv"):
        command = as_another(DROPS["user"], command, at, then=[f"mount --bind {at}/me {at}/second"])
    answers = answers_of(command, env, at)
    return Found(at, answers["before"], answers["after"])


CLOSED = {"FileNotFoundError", "PermissionError"}


@pytest.mark.slow
@needs_linux
@pytest.mark.parametrize("name", [*THERE, *LATER, "alias/.netrc", "second/.netrc", "keys/kube.lock", "me/mine.txt"])
def test_secrets_are_closed_before_and_after_they_are_written(found: Found, name: str) -> None:
    assert set(found.of(name)) <= CLOSED


@needs_linux
@pytest.mark.parametrize("name", ["me/.tool/lib", "proj/table.json", "keys/plain"])
def test_what_it_needs_beside_them_is_read(found: Found, name: str) -> None:
    assert found.of(name) == (f"was {name}",) * 2


@pytest.mark.parametrize(
    ("name", "value", "closed"),
    [
        ("HF_HOME", "/a/hf", "/a/hf"),
        ("HF_TOKEN_PATH", "/a/t", "/a/stored_tokens"),
        ("KUBECONFIG", "/a/k:/b/k", "/b/k"),
        ("XDG_CACHE_HOME", "~/elsewhere", "/home/me/elsewhere"),
        ("AWS_SHARED_CREDENTIALS_FILE", "/a/c", "/a/c"),
        ("RLVF_HOME", "/a/r", "/a/r"),
    ],
)
def test_places_that_variables_name_are_closed(
    name: str, value: str, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv(name, value)
    assert {closed, "/home/me"} <= set(secret_places(None))


def test_a_folder_of_the_system_is_not_closed_for_being_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc")
    found = secret_places(None)
    assert not {"/", "/etc"} & set(found)
    assert {"/.ssh", "/.netrc"} <= set(found)


def test_a_package_that_is_edited_where_it_is_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my lib").mkdir()
    for name, origin in {
        "mine": {"url": (tmp_path / "my lib").as_uri(), "dir_info": {"editable": True}},
        "copied": {"url": tmp_path.as_uri(), "dir_info": {}},
        "broken": ["?"],
    }.items():
        info = tmp_path / "site" / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path / "site")
    interpreter._editable.cache_clear()
    try:
        assert str(tmp_path / "my lib") in interpreter.folders()
        assert str(tmp_path) not in interpreter.folders()
    finally:
        interpreter._editable.cache_clear()


def test_a_worker_that_may_not_look_where_the_reward_lies_judges_without_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = tmp_path / "my_reward.py"
    reward.write_text("def reward(problem, completion):\n    return 1.0\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # root's verifiers do not come here
    assert opened_module.folder_of(str(reward)) == [str(tmp_path)]

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    assert opened_module.folder_of(str(reward)) == []
