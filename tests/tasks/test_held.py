"""The models of a worker by turns: what its calls return is the same, whether all stay or none."""

import pickle
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from infra.cluster import resident as module
from infra.cluster.resident import using
from infra.cluster.room import Room
from infra.storage import store
from infra.storage.lock import acquire
from rl.config import SamplingConfig
from rl.loading.reward_model import load_reward_model
from rl.model.memory import NoRoomError
from rl.model.parking import Device, ModelMemory
from rl.model.policy import save_policy
from rl.records import Problem
from tasks.calls import held
from tasks.calls.critic import Valuer
from tasks.calls.generator import Generator
from tasks.calls.reward import RewardModel
from tasks.calls.scorer import Scorer
from tests.tasks.test_critic_calls import CPU, batch_at, both_of, lose, saved_state

pytestmark = pytest.mark.slow

STEPS = 2
FROZEN = ("sampler", "reference", "values", "reward model")


@dataclass
class Seen:
    """What came of a run, and how often models were loaded and parked."""

    bits: list[bytes]
    state: dict[str, bytes]
    loads: Counter[str]
    parks: int


def run(folder: Path, start: Path, judge: RewardModel, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """All calls of a worker that has every role."""
    loads, parks = Counter[str](), []

    def counted(name: str, key: Hashable, build: Callable[[], Any], *, again: bool) -> AbstractContextManager[Any]:
        def load() -> Any:
            loads[name.split(" /")[0]] += 1
            return build()

        return using(name, key, load, again=again)

    real = ModelMemory.park

    def park(memory: ModelMemory) -> None:
        parks.append(memory)
        real(memory)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_room", Room())
        patch.setattr(held, "using", counted)
        patch.setattr(ModelMemory, "park", park)
        lock = acquire(str(folder), print)
        trainer, critic = both_of(str(folder), start, lock.new_fence())
        sampling = Generator(CPU, SamplingConfig(max_tokens=12), samples=4, seed=0)
        scorer, valuer = Scorer(sampling.weights, 1.0), Valuer(CPU)
        critic.begin()
        trainer.begin(0)
        first = trainer.publish(0).version
        problems = [Problem("add 1 and 2", "1 + 2", "here:1"), Problem("add 3 and 4", "3 + 4", "here:2")]
        bits = []
        for step in range(STEPS):
            version, values = trainer.publish(step).version, critic.publish(step).version
            for lease in range(2):
                rollouts = sampling.generate(version, step, [2 * lease, 2 * lease + 1], problems)
                scores = scorer.score(first, rollouts), valuer.value(values, rollouts)
                rewards = judge.score(problems, rollouts.texts, rollouts.ended)
                bits += [each.tobytes() for each in (rollouts.tokens, rollouts.logprobs, *scores, rewards)]
            trainer.advance(step, batch_at(step), {})
            critic.advance(step, batch_at(step))
        lose()
        lock.release()
    return Seen(bits, saved_state(folder, STEPS), loads, len(parks))


@pytest.fixture
def judge(tmp_path: Path, half_right: Path) -> RewardModel:
    made = load_reward_model(str(half_right), CPU, master=True, fresh=True)
    with torch.no_grad():
        made.model.get_output_embeddings().weight.normal_()
    save_policy(made, tmp_path / "made")
    stored = store.write_folder(str(tmp_path / "judge"), tmp_path / "made", meta={}, flat=True)
    return RewardModel(str(tmp_path / "judge"), stored.digest)


def test_whether_models_stay_or_take_turns_their_bits_are_the_same(
    tmp_path: Path, half_right: Path, judge: RewardModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stay = run(tmp_path / "stay", half_right, judge, monkeypatch)
    assert stay.loads == dict.fromkeys(("learner", "critic", *FROZEN), 1)
    assert stay.parks == 0

    with monkeypatch.context() as patch:  # with room for none beside the one that is used
        patch.setenv("RLVF_MODELS_GB_CUDA", "0.0001")
        patch.setattr(Device, "of", lambda _: Device("cuda", 2**30, apart=True))
        turns = run(tmp_path / "turns", half_right, judge, patch)
    assert turns.loads == stay.loads
    assert turns.parks > STEPS * 2 * len(FROZEN)

    with monkeypatch.context() as patch:
        patch.setenv("RLVF_MODELS_GB_CPU", "0.0001")
        dropped = run(tmp_path / "dropped", half_right, judge, patch)
    assert dropped.loads == {"learner": 1, "critic": 1, **dict.fromkeys(FROZEN, 2 * STEPS)}
    assert dropped.parks == 0

    assert turns.bits == stay.bits == dropped.bits
    assert turns.state == stay.state == dropped.state


@dataclass(eq=False)
class Kept:
    memory: ModelMemory


def kept() -> Kept:
    return Kept(ModelMemory(torch.nn.Linear(1000, 1000, bias=False), torch.device("cpu")))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_room", Room())


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoRoomError("one sequence of 10 tokens does not fit"), "one sequence of 10 tokens does not fit"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to"), "memory has run out for the values: take a smaller"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "memory has run out for the values: take a smaller",
        ),
    ],
)
def test_a_lack_of_memory_names_what_else_is_there(error: Exception, said: str) -> None:
    def fail() -> Kept:
        raise error

    with pytest.raises(NoRoomError, match=f"^{said}[^;]*$"), held.held("values", 0, fail, again=True):
        pass
    with held.held("learner", 0, kept, again=False):
        pass
    with pytest.raises(NoRoomError) as raised, held.held("values", 0, kept, again=True):
        raise error
    assert str(raised.value).startswith(said)
    assert "; this worker also keeps there learner (0.004 GB), as many as cluster.memory allows" in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.usefixtures("alone")
def test_other_errors_are_what_they_were() -> None:
    with pytest.raises(RuntimeError, match=r"^shapes do not fit$"), held.held("values", 0, kept, again=True):
        raise RuntimeError("shapes do not fit")
