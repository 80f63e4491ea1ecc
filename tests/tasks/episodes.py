"""Episodes that tests of `tasks.turns` play in this process, with fresh weights."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from threading import Lock
from typing import Any

import numpy as np
import torch

from infra.cluster.placement import Offer
from infra.weights.version import PolicyVersion
from rl.config import PolicyConfig, SamplingConfig
from rl.environments import opened
from rl.environments.episode import Episode
from rl.environments.interface import Interface
from rl.environments.spec import EnvironmentSpec
from rl.model.policy import Policy
from rl.model.tiny import build_model, build_tokenizer
from rl.records import Problem, Rollouts
from rl.sampling.engine import Hooks, to_the_end
from rl.sampling.prefix_cache import PrefixCache
from rl.sampling.sampler import sample
from tasks.batch.lease import Lease, Slice
from tasks.batch.slices import Slices
from tasks.calls.episodes import play
from tasks.calls.generator import Generator
from tasks.turns import Episodes, in_turns

SAMPLES, LIMIT = 3, 48
TEXT = """
class Lengths:
    turns, seconds, memory = 4, 10.0, 128

    def reset(self, target, **_):
        self.target, self.said, self.over = target, [], False
        return f" say {target}."

    def step(self, text):
        if text.startswith(" "):
            raise ValueError("no blank first")
        self.said.append(len(text))
        self.over = len(self.said) == 3 and text > "m"
        if self.target == "broken" and len(self.said) == 2:
            raise RuntimeError("out of order")
        return f"{len(text)} {len(self.said)}"

    def get_reward(self):
        return sum(self.said) / 100 + self.over
"""
SPEC = EnvironmentSpec(name="lengths.py:Lengths", text=TEXT, sandbox="none")
STEP = Interface(step=True)
PROBLEMS = tuple(
    Problem(f"problem {n}", target, f"t:{n}", played=True) for n, target in enumerate(["one", "two", "six", "ten"])
)
LEASES = [Lease(range(2), PROBLEMS[:2]), Lease(range(2, 4), PROBLEMS[2:])]


class Here:
    """Calls that are made in this process, one at a time, by verifiers of which one may be lost."""

    def __init__(self, workers: int = 1, lost: Iterable[int] = ()) -> None:
        self.workers, self.lost, self.calls = workers, set(lost), 0
        self.calling = Lock()

    def offers(self, *_: Any, **__: Any) -> list[Offer]:
        return [Offer(f"tcp://{n}", f"v{n}", {}) for n in range(self.workers)]

    def lease(self, _: str, function: Any, items: Sequence[Any], *, check: Any, **__: Any) -> Iterator[tuple[int, Any]]:
        for index, item in enumerate(items):
            with self.calling:
                self.calls += 1
                if self.calls in self.lost and function is play:  # it acts, and its answer and its processes are lost
                    function(*item)
                    opened.close(SPEC)
                result = function(*item)
            assert check(index, result) == ""
            yield index, result


def fresh_policy() -> Policy:
    """Of fresh weights, every fourth token of which ends a turn."""
    tokenizer = build_tokenizer()
    assert tokenizer.eos_token_id is not None
    model = build_model(len(tokenizer), tokenizer.eos_token_id, 0, seed=0)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *range(20, len(tokenizer), 4)]
    return Policy(model, tokenizer, torch.device("cpu"), torch.float32)


Played = tuple[dict[int, Rollouts], dict[int, tuple[Episode, ...]], Episodes]


def played(
    policy: Policy,
    here: Any = None,
    *,
    leases: Sequence[Lease] = LEASES,
    spec: EnvironmentSpec = SPEC,
    interface: Interface = STEP,
    tokens: int = 0,
    limit: int = LIMIT,
    kept: PrefixCache | None = None,
) -> Played:
    """All episodes; with ``tokens`` a generator hands a lease in after so many, and another one goes on."""
    config = SamplingConfig(max_tokens=limit)
    generator = Generator(PolicyConfig(), config, SAMPLES, 0, slice_seconds=tokens or None, interface=interface)
    episodes = Episodes(here or Here(), spec, "0.0", SAMPLES)
    version, drawing = PolicyVersion(0, "v0", ""), Lock()
    slices = Slices(generator, 0, episodes.begin(leases), range(1), 2000, lambda _: version)

    def made(indices: Iterable[int], _: tuple[int, ...]) -> Iterator[int]:
        for index in indices:
            done = False
            while not done:
                _, step, groups, problems, so_far = slices.arguments(index)
                stop_now = (lambda looks: lambda: next(looks) >= tokens - 1)(count()) if tokens else to_the_end
                with drawing:
                    returned = sample(
                        policy,
                        0,
                        problems,
                        config,
                        samples=SAMPLES,
                        seed=0,
                        step=step,
                        groups=groups,
                        so_far=so_far,
                        hooks=Hooks(stop_now=stop_now),
                        interface=interface,
                        kept=kept,
                    )
                assert slices.check(index, returned) == ""
                done = slices.take(index, returned, Offer("tcp://g", "g", {}))
            yield index

    found: dict[int, Rollouts] = {}
    by: dict[int, tuple[Slice, ...]] = {}
    for lease, rollouts, parts in in_turns(slices, episodes, made):
        found[lease.groups.start], by[lease.groups.start] = rollouts, parts
    assert all(np.array_equal(by[start][-1].end, of.lengths) for start, of in found.items())
    return found, {lease.groups.start: episodes.of(lease) for lease in leases}, episodes


def rows(found: Played) -> Iterator[tuple[Episode, list[int], list[bool], np.ndarray, bool]]:
    """Each episode with its tokens, which of them are the policy's, their log-probs, and whether it has ended."""
    for start, rollouts in found[0].items():
        T = rollouts.tokens.shape[2]  # noqa: N806
        flat = (of.reshape(-1, T) for of in (rollouts.tokens, rollouts.trained, rollouts.logprobs))
        for episode, n, end, tokens, own, logprobs in zip(
            found[1][start], rollouts.lengths.ravel(), rollouts.ended.ravel(), *flat, strict=True
        ):
            yield episode, tokens[:n].tolist(), own[:n].tolist(), logprobs[:n], bool(end)


def sorted_rows(found: Played) -> list[tuple[Episode, list[int], list[bool]]]:
    return sorted((row[:3] for row in rows(found)), key=lambda row: row[0].key)
