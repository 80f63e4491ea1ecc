"""The memory of a model: what it measures, and that nothing of it changes on its way to the machine's and back."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from rl.config import PolicyConfig
from rl.learning.learner import Learner
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.supervised import demonstrations, imitate
from rl.loading.policy import load_policy
from rl.lora_config import LoraConfig
from rl.model.parking import Device, ModelMemory
from rl.model.policy import Policy, save_policy
from rl.model.tiny import build_model, build_tokenizer
from rl.problems.shown import shown

OPTIMIZERS = {
    "adamw": OptimizerConfig(lr=1e-3),
    "muon": OptimizerConfig(lr=1e-3, name="muon"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, words = tmp_path_factory.mktemp("tiny"), build_tokenizer()
    model = build_model(len(words), words.eos_token_id, words.pad_token_id, 0)
    save_policy(Policy(model, words, torch.device("cpu"), torch.float32), made)
    return made


def learner_of(folder: Path, optimizer: str = "adamw", rank: int = 0, device: str = "cpu") -> Learner:
    config = PolicyConfig(device=device, dtype="float32", lora=LoraConfig(rank=rank))
    torch.manual_seed(0)  # of new adapters
    return Learner(load_policy(str(folder), config, master=True), OPTIMIZERS[optimizer])


def learn(learner: Learner, updates: int) -> None:
    for _ in range(updates):
        imitate(learner, demonstrations(learner.policy, shown("grammar", 0, learner.step, 4)))
        learner.step += 1


def state(learner: Learner) -> list[bytes]:
    kept = [value for optimizer in learner.optimizers for of in optimizer.state.values() for value in of.values()]
    tensors = [*learner.policy.model.state_dict().values(), *(each for each in kept if isinstance(each, Tensor))]
    return [each.cpu().numpy().tobytes() for each in tensors]


@pytest.mark.parametrize(
    ("optimizer", "rank"), [("adamw", 0), pytest.param("muon", 0, marks=pytest.mark.slow), ("adamw", 4)]
)
def test_a_trainer_that_was_parked_learns_on_bit_for_bit(folder: Path, optimizer: str, rank: int) -> None:
    moved, stayed = (learner_of(folder, optimizer, rank) for _ in range(2))
    parameters = list(moved.policy.model.parameters())
    for updates in (0, 1, 2):
        learn(moved, updates)
        learn(stayed, updates)
        before = [each.data_ptr() for each in parameters]
        moved.memory.park()
        parked = [each.data_ptr() for each in parameters]
        assert set(before).isdisjoint(parked)  # even where both are the machine's
        moved.memory.unpark()
        assert set(parked).isdisjoint(each.data_ptr() for each in parameters)
        assert state(moved) == state(stayed)
    assert all(one is other for one, other in zip(parameters, moved.policy.model.parameters(), strict=True))
    learn(moved, 2)
    learn(stayed, 2)
    assert state(moved) == state(stayed)


def test_what_is_measured_is_there(folder: Path) -> None:
    learner = learner_of(folder)
    count = sum(each.numel() for each in learner.policy.model.parameters())
    buffers = sum(each.nbytes for each in learner.policy.model.buffers())
    assert learner.policy.memory.nbytes == 4 * count + buffers
    assert learner.memory.nbytes == 16 * count + buffers  # gradients and moments, before there are any
    learn(learner, 1)
    counters = 4 * len(learner.parameters)  # of AdamW's steps
    assert learner.memory.nbytes == 16 * count + buffers + counters
    assert learner.memory.device.name == "cpu"
    assert not learner.memory.device.apart


def test_adapters_are_small_beside_the_frozen_model(folder: Path) -> None:
    learner = learner_of(folder, rank=4)
    trained = sum(each.numel() for each in learner.parameters)
    every = sum(each.nbytes for each in [*learner.policy.model.parameters(), *learner.policy.model.buffers()])
    assert learner.memory.nbytes == every + 12 * trained


def test_tensors_of_the_same_memory_are_so_when_they_come_back() -> None:
    model = torch.nn.ModuleDict({"one": torch.nn.Linear(3, 3, bias=False), "two": torch.nn.Linear(3, 3, bias=False)})
    one, two = model["one"].weight, model["two"].weight
    two.data = one.data
    memory = ModelMemory(model, torch.device("cpu"))
    assert memory.nbytes == one.nbytes
    memory.park()
    memory.unpark()
    with torch.no_grad():
        one.fill_(7)
    assert (two == 7).all()
    assert memory.nbytes == one.nbytes


@pytest.mark.parametrize("way", ["park", "unpark"])
def test_where_memory_runs_out_nothing_has_moved(folder: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(folder)
    learn(learner, 1)
    expected = state(learner)
    if way == "unpark":
        learner.memory.park()
    places = [each.data_ptr() for each in learner.policy.model.parameters()]
    real, calls = Tensor.to, iter(range(1000))

    def to(tensor: Tensor, *given: object, **named: object) -> Tensor:
        if next(calls) == 7:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(tensor, *given, **named)  # type: ignore[call-overload, no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "to", to)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            getattr(learner.memory, way)()
    assert [each.data_ptr() for each in learner.policy.model.parameters()] == places
    if way == "unpark":
        learner.memory.unpark()
    assert state(learner) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_has_its_memory_back_while_a_trainer_is_parked(folder: Path) -> None:
    moved, stayed = (learner_of(folder, device="cuda") for _ in range(2))
    for learner in (moved, stayed):
        learn(learner, 2)
    assert Device.of(torch.device("cuda")).total > 2**30
    before = torch.cuda.memory_allocated()
    moved.memory.park()
    held = sum(each.nbytes for each in moved.policy.model.parameters())
    assert before - torch.cuda.memory_allocated() >= 3 * held  # moments too
    assert {each.device.type for each in moved.policy.model.parameters()} == {"cpu"}
    moved.memory.unpark()
    assert state(moved) == state(stayed)
    for learner in (moved, stayed):
        learn(learner, 1)
    assert state(moved) == state(stayed)
