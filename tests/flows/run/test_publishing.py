"""A version that a worker cannot get at: published again if it is damaged, and not if that worker alone lacks it."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flows.run import publishing
from flows.run.publishing import MENDS, Publishing
from infra.errors import mark_worker
from infra.storage.manifest import NotThere, Torn
from infra.weights.version import PolicyVersion, Published, weights_uri
from infra.weights.whole import keep_whole, write_whole


class Town:
    """A run whose version 0 is published, and what is asked of its trainer and said to people."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mended: list[Any] = []
        self.said: list[str] = []
        (folder / "made").mkdir()
        write_whole(folder / "made", {"weight": torch.zeros(4)})
        self.version: PolicyVersion = keep_whole(weights_uri(str(folder / "run"), 0), folder / "made")
        monkeypatch.setattr(publishing, "publish", lambda *_: Published(self.version))
        workplace: Any = SimpleNamespace(
            dispatch=SimpleNamespace(run=lambda *asked, **_: self.mended.append(asked)),
            display=SimpleNamespace(say=self.said.append),
        )
        critic, sync = str(folder / "run" / "critic"), SimpleNamespace(patience=0)
        trainer: Any = SimpleNamespace(
            mend=None, call="train_critic", run_uri=str(folder / "run"), model_uri=critic, sync=sync
        )
        tracker: Any = None
        self.given = workplace, trainer, tracker
        self.publishing = Publishing(*self.given, 0)

    def unseen(self) -> NotThere:
        error = NotThere(f"there is nothing whole that makes {self.version.uri}, yet")
        mark_worker(error, "jetson-generator")
        return error


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    return Town(tmp_path, monkeypatch)


def test_what_one_worker_does_not_see_and_this_machine_does_is_not_published_again(town: Town) -> None:
    for _ in range(MENDS):
        town.publishing.mend(town.unseen())
    assert town.mended == []
    (line,) = town.said  # once
    assert f"{town.version.uri} is there for this machine: jetson-generator does not see the storage" in line
    with pytest.raises(NotThere, match="does not see the storage: mount it there at the same path"):
        town.publishing.mend(town.unseen())


def test_what_is_damaged_or_gone_is_published_again(town: Town) -> None:
    town.publishing.mend(Torn(f"{town.version.uri} is torn"))
    assert len(town.mended) == 1
    shutil.rmtree(town.version.uri)
    town.publishing.mend(town.unseen())
    assert len(town.mended) == 2


def test_a_version_of_before_is_of_the_same_model(town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The critic's lie in a folder of its own, beside the policy's."""
    (tmp_path / "made").mkdir()
    write_whole(tmp_path / "made", {"weight": torch.ones(4)})
    first = keep_whole(weights_uri(str(tmp_path / "run" / "critic"), 0), tmp_path / "made")
    monkeypatch.setattr(publishing, "publish", lambda *_: Published(replace(first, step=2)))
    assert Publishing(*town.given, 2).version(0) == first
