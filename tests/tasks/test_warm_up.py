"""A warm-up that is kept somewhere else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from infra.cluster.resident import drop
from infra.dispatch.dispatch import Dispatch
from infra.storage import store
from infra.weights.version import published_version
from infra.weights.whole import keep_whole
from rl.config import PolicyConfig
from rl.learning import supervised
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.supervised import demonstrations
from rl.loading.policy import load_policy
from rl.model.policy import Policy, save_policy
from rl.model.tiny import build_model, build_tokenizer
from rl.problems.made.grammar import stream
from rl.problems.shown import Shown
from rl.records import Problem, Rollouts
from tasks import warm_up as task
from tasks.calls.warm_up import WarmUp
from tasks.warm_up import bring, is_kept
from tests.streams import drawing

draw = drawing(stream)

SPEC = WarmUp(
    problems="grammar",
    steps=5,
    batch=2,
    optimizer=OptimizerConfig(lr=4e-3),
    seed=0,
    policy=PolicyConfig(device="cpu"),
)


@pytest.fixture
def fresh() -> Iterator[None]:
    drop("warm-up")
    yield
    drop("warm-up")


@pytest.mark.usefixtures("fresh")
def test_a_call_ends_after_its_time_on_whatever_machine_and_a_successor_begins_at_the_first_update() -> None:
    assert SPEC.updates(1)[0] == 1
    assert SPEC.updates(2, 0.0)[0] == 2
    drop("warm-up")  # its process died
    assert SPEC.updates(3)[0] == 3
    made, loss = SPEC.updates(4, 600.0)
    assert made == 5
    assert loss > 0


@pytest.mark.usefixtures("fresh")
def test_each_call_gets_further_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Here:
        """Calls at once what a worker would."""

        def run(self, _: str, function: Any, *args: Any) -> Any:
            return function(*args)

    monkeypatch.setattr(task, "SECONDS", 0.0)  # a machine on which each update takes as long as a call may
    told: list[int] = []
    uri = str(tmp_path / "warmup" / "a")
    task.warm_up.fn(cast("Dispatch", Here()), SPEC, uri, lambda step, _: told.append(step))
    assert told == [1, 2, 3, 4, 5]
    assert is_kept(uri)


def test_a_warm_up_of_the_home_is_brought_to_a_storage_elsewhere(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    made = tmp_path / "made"
    build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, 0).save_pretrained(made)
    tokenizer.save_pretrained(made)
    save_policy(load_policy(str(made), PolicyConfig(device="cpu")), tmp_path / "policy")
    home, elsewhere = str(tmp_path / "home" / "warmup" / "a"), "memory://brought/warmup/a"
    version = keep_whole(home, tmp_path / "policy")
    assert bring(home, elsewhere)
    assert published_version(elsewhere).digest == version.digest
    with store.read_folder(elsewhere) as there, store.read_folder(home) as here:
        assert (there.path / "model.safetensors").read_bytes() == (here.path / "model.safetensors").read_bytes()


def test_what_is_not_kept_or_damaged_is_not_brought(tmp_path: Path) -> None:
    assert not bring(str(tmp_path / "nothing"), "memory://not-brought")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "model.safetensors").write_bytes(b"weights")
    stored = tmp_path / "stored"
    store.write_folder(str(stored), tmp_path / "source")
    (stored / "model.safetensors").write_bytes(b"other")
    assert not bring(str(stored), "memory://not-brought")
    assert not is_kept("memory://not-brought")


def test_a_warm_up_shows_no_answers_of_what_training_draws_first(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Problem] = []

    def seen(policy: Policy, some: list[Shown]) -> Rollouts:
        shown.extend(each.problem for each in some)
        return demonstrations(policy, some)

    monkeypatch.setattr(supervised, "demonstrations", seen)
    spec = WarmUp("grammar", 3, 8, OptimizerConfig(lr=1e-3), seed=0, policy=PolicyConfig(device="cpu"))
    spec.updates(at_least=3)
    drop("warm-up")
    assert len(shown) == 24
    assert not {each.prompt for each in shown} & {each.prompt for step in range(3) for each in draw(0, step, 32)}
