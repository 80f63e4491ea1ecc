"""Devices that can do less than a CPU, made up: one without float64, as MPS is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from infra.cluster import settings
from rl.config import SamplingConfig
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.optimizer_config import OptimizerConfig
from rl.loading.parity import measure
from rl.model import memory, processor
from rl.model.memory import DEVICE_PROCESSES, NoRoomError, reserve, spare_bytes, yield_memory
from rl.model.policy import Policy
from rl.records import Batch, Problem
from rl.sampling.sampler import sample

MPS = torch.device("mps")


def on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and getattr(value, "on_device", False)


def put(tensor: torch.Tensor, there: bool) -> torch.Tensor:
    if there and tensor.dtype == torch.float64:
        raise TypeError(
            "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use "
            "float32 instead."
        )
    tensor.on_device = there  # type: ignore[attr-defined]
    return tensor


class Crossings(TorchFunctionMode):
    """To the device by naming it, off it by ``cpu()``; numpy sees nothing that is on it. The memory is the CPU's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cpu:
            return put(args[0].clone(), False)
        if func is torch.Tensor.numpy and on_device(args[0]):
            raise TypeError("can't convert mps:0 device type tensor to numpy. Use Tensor.cpu() first")
        if not any(isinstance(one, torch.device) and one == MPS for one in (*args, kwargs.get("device"))):
            return func(*args, **kwargs)
        moved = [torch.device("cpu") if arg == MPS else arg for arg in args if isinstance(arg, torch.device)]
        rest = [arg for arg in args if not isinstance(arg, torch.device)]
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        result = func(*rest[:1], *moved, *rest[1:], **kwargs)
        return put(result.clone() if any(result is arg for arg in rest) else result, True)


class WithoutFloat64(TorchDispatchMode):
    """What comes of a tensor on the device is on it, and no float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(on_device(leaf) for leaf in tree_leaves((args, kwargs))):
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    put(leaf, True)
        return result


@contextmanager
def mps() -> Iterator[None]:
    with Crossings(), WithoutFloat64():
        yield


@pytest.fixture
def carried(make_policy: Callable[..., Policy]) -> Callable[[], Policy]:
    def make() -> Policy:
        policy = make_policy(eager=4.0)
        for tensor in [*policy.model.parameters(), *policy.model.buffers()]:
            tensor.on_device = True  # type: ignore[attr-defined]
        return replace(policy, device=MPS)

    return make


def test_the_made_up_device_refuses_float64_and_numpy_and_nothing_off_it() -> None:
    with mps():
        there = torch.zeros(3).to(MPS)
        assert on_device(there)
        assert on_device(there + 1)
        for wrong in (there.double, lambda: torch.zeros(3, dtype=torch.float64, device=MPS), there.numpy):
            with pytest.raises(TypeError):
                wrong()
        assert there.cpu().double().dtype == torch.float64
        assert torch.zeros(3).double().numpy().dtype == np.float64


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("loss", ["reinforce", "grpo"])
def test_sampling_and_learning_make_no_float64_on_the_device(
    loss: str,
    optimizer: str,
    carried: Callable[[], Policy],
    problems: list[Problem],
    judged: Callable[..., Batch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 2**30)  # of Metal, which is not here
    policy = carried()
    config = SamplingConfig(max_tokens=8, stop=("zz",))
    with mps():
        assert measure(policy).gap < 1e-3
        rollouts = sample(policy, 0, problems, config, samples=4, seed=0, step=0, groups=range(3))
        batch = judged(rollouts, [[1, 0, 0, 1]] * 3)
        learner = Learner(policy, OptimizerConfig(name=optimizer, lr=1e-3, warmup_steps=0))
        learned = learner.update(batch, AlgorithmSpec(name=loss, overlong=2, mask_truncated=True), 1.0, 8)
    assert learned.applied
    moments = [kept for one in learner.optimizers for of in one.state.values() for kept in of.values() if kept.ndim]
    assert moments
    assert all(map(on_device, moments))  # the made-up device was the one that worked


def test_who_starts_workers_and_who_asks_call_it_the_same() -> None:
    assert (DEVICE_PROCESSES, processor.MEASURED) == (settings.DEVICE_PROCESSES, settings.MEASURED)


@pytest.mark.parametrize(
    ("processes", "device", "expected"),
    [
        (None, "cuda", 80),
        ("1", "cuda", 80),
        ("2", "cuda", 40),
        ("4", "cuda", 20),
        (None, "cpu", 50),
        ("1", "mps", 50),
        ("2", "mps", 40),
        ("4", "cpu", 20),
    ],
)
def test_those_that_compute_on_a_device_count_on_equal_parts_of_what_is_free(
    processes: str | None, device: str, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 110)
    if processes is not None:
        monkeypatch.setenv(DEVICE_PROCESSES, processes)
    assert spare_bytes(torch.device(device), 10) == pytest.approx(expected)
    assert spare_bytes(torch.device(device), 10, processes=2) == pytest.approx(40)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_what_is_kept_for_later_is_given_back_and_taken_ahead_where_others_compute(
    processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, released, made = torch.device("cuda"), [], []
    monkeypatch.setenv(DEVICE_PROCESSES, processes)
    monkeypatch.setattr(memory, "release", released.append)
    monkeypatch.setattr(torch, "empty", lambda count, **named: made.append((count, named["device"])))
    yield_memory(cuda)
    reserve(12, cuda)
    reserve(12, torch.device("cpu"))
    assert released == [cuda] * (processes == "2")
    assert made == [(12, cuda)] * (processes == "2")


def test_what_cannot_be_taken_ahead_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setenv(DEVICE_PROCESSES, "2")
    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(NoRoomError, match=r"what an update keeps \(7\.2 GB\) does not fit into the memory of cuda"):
        reserve(7_200_000_000, torch.device("cuda"))
