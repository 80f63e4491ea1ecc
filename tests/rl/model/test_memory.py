"""What a process keeps of memory that was freed."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from rl.model.activations import kept_by_position, kept_of_row
from rl.model.lora import Base
from rl.model.memory import NoRoomError, is_out_of_memory, less_memory, one_of, room_for
from rl.model.policy import Policy
from rl.model.value import value_model

TENSORS = """
import sys
from pathlib import Path
import torch
from rl.model.memory import return_freed

torch.set_num_threads(1)
torch.empty(30 * 2**18)  # 30 MiB: from now on glibc maps none of less
if sys.argv[1] == "True":
    return_freed()
kept = []
for _ in range(200):
    kept.append((torch.ones(2**18), torch.ones(2**15)))  # 1 MiB, and what stays behind it: too large for older gaps
kept = [small for _, small in kept]
found = Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]
print(int(found) / 1024)
"""


@pytest.mark.slow  # torch in two processes
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's way alone, and /proc")
def test_freed_tensors_go_back_to_the_system_between_those_that_stay() -> None:
    held = [
        float(subprocess.run([sys.executable, "-c", TENSORS, given], capture_output=True, text=True, check=True).stdout)
        for given in ("False", "True")
    ]
    assert held[0] - held[1] > 150, held


def test_layers_share_a_mask(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy("qwen3")
    policy.model.model.layers = policy.model.model.layers[:1]
    one = kept_by_position(policy, 128)[1]
    several = kept_by_position(make_policy("qwen3"), 128)[1]
    assert several == pytest.approx(one) == pytest.approx(4)  # bytes of a position, for each position of its row


def test_what_is_advised_to_take_less_is_not_taken_yet(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    assert less_memory(policy) == ("policy.lora 16",)
    wide, narrow = (replace(policy, base=Base("model", kind, "")) for kind in ("float32", "bfloat16"))
    assert less_memory(wide) == ("policy.lora.base bfloat16",)
    assert less_memory(narrow) == ()
    assert less_memory(value_model(policy)) == ()  # all of it is trained
    assert one_of(["a"]) == "a"
    assert one_of(["a", "b", "c"]) == "a, b or c"
    with pytest.raises(NoRoomError, match="cpu: give a, b or a smaller"), room_for("it", policy.device, ("a", "b")):
        raise MemoryError


def test_what_was_measured_of_a_pass_is_freed(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    held: list[StorageWeakRef] = []
    for module in policy.model.modules():
        module.register_forward_hook(
            lambda _, __, made: held.append(StorageWeakRef(made.untyped_storage())) if torch.is_tensor(made) else None
        )
    assert kept_of_row(policy, 64) > 0
    assert len(held) > 10
    assert all(each.expired() for each in held)


def test_what_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60)
    assert is_out_of_memory(error.value)
    said = ("MPS backend out of memory (MPS allocated: 1.00 GB)", "std::bad_alloc", "could not create a primitive")
    said += ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",)
    assert all(is_out_of_memory(RuntimeError(one)) for one in said)
    assert is_out_of_memory(MemoryError())
    unsupported = "could not create a primitive descriptor for the matmul primitive. Run workload with …"
    assert not any(is_out_of_memory(RuntimeError(one)) for one in ("mat1 and mat2 shapes differ", unsupported))
    assert not is_out_of_memory(ValueError("out of memory"))
