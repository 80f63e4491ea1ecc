"""Generation by a server beside the generator, which hands it the weights of each version."""

import fcntl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_hex

from safetensors.torch import save_file
from torch import Tensor, nn

from infra import disk
from infra.cluster.resident import drop, resident
from infra.cluster.timeline import waiting_for_weights
from infra.weights.quantization import restored
from infra.weights.version import PolicyVersion
from rl.config import SamplingConfig
from rl.loading.policy import load_policy
from rl.model.policy import Policy
from rl.records import Problem, Rollouts
from rl.sampling.served import require_same, require_taken, sample_served
from rl.sampling.server import Server, ServerError
from tasks.calls.weights import Weights

POLL_SECONDS = 0.25
OURS = "rlvf "  # begins the name of weights that a generator has handed over


@dataclass(frozen=True)
class Served:
    """A server, and the policy whose tokenizer and configuration go with it; of its weights nothing is kept."""

    server: Server
    policy: Policy

    def hand_over(self, weights: Mapping[str, Tensor], name: str) -> None:
        """Have the server read the weights, under this name and a number that no other hand-over has."""
        folder = disk.own_folder() / "served"
        folder.mkdir(exist_ok=True)
        file = folder / "model.safetensors"
        try:
            save_file({key: value.contiguous() for key, value in weights.items()}, file, metadata={"format": "pt"})
            self.server.load(folder, f"{name}:{token_hex(4)}")
        finally:
            file.unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        return self.server.weights().startswith(f"{name}:")


def generate_served(
    weights: Weights,
    version: PolicyVersion,
    problems: Sequence[Problem],
    sampling: SamplingConfig,
    *,
    samples: int,
    seed: int,
    step: int,
    groups: Sequence[int],
    greedy: bool,
    check: Callable[[], None],
) -> Rollouts:
    """One lease, by the server of ``weights.policy.engine``; ``check`` is called while it is waited for.

    Raises:
        ServerError: it does not do what it is asked to, or was given other weights meanwhile.
    """
    mirror = weights.mirror(version)
    name = f"{OURS}{version.digest}"
    with _turn(weights.policy.engine, check):
        with waiting_for_weights(mirror.take_fetched):

            def begin() -> Served:
                """A server whose log-probs are the policy's."""
                server = Server(weights.policy.engine)
                server.open()
                on_cpu = weights.policy.model_copy(update={"device": "cpu"})
                with mirror.at(version, check) as found:
                    tensors = restored(found)
                    policy = load_policy(str(mirror.root), on_cpu, weights=tensors, check=False)
                    served = Served(server, policy)
                    require_taken(policy, server, tensors, lambda moved: served.hand_over(moved, f"{OURS}moved"))
                    served.hand_over(tensors, name)
                require_same(policy, server)
                nn.Module.to(policy.model, "meta")
                return served

            key = weights.key(version)
            served = resident("sampler", key, begin)
            if not served.server.weights().startswith(OURS):  # it was started anew, perhaps with other options
                drop("sampler")
                served = resident("sampler", key, begin)
            if not served.has(name):
                with mirror.at(version, check) as found:
                    served.hand_over(restored(found), name)
        held = served.server.weights()
        rollouts = sample_served(
            served.policy,
            served.server,
            version.step,
            problems,
            sampling,
            samples=samples,
            seed=seed,
            step=step,
            groups=groups,
            greedy=greedy,
            between_tokens=check,
        )
        if not held.startswith(f"{name}:") or served.server.weights() != held:
            drop("sampler")
            raise ServerError(
                f"policy.engine: the server at {served.server.address} was given other weights while it sampled from "
                f"{version}; each run needs a server of its own"
            )
    return rollouts


@contextmanager
def _turn(address: str, check: Callable[[], None]) -> Iterator[None]:
    """One process of this machine has a server at a time, from the hand-over to the last token."""
    lock = disk.own_folder().parent / f"engine-{sha256(address.encode()).hexdigest()[:16]}.lock"
    with lock.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                check()
                time.sleep(POLL_SECONDS)
        yield
