"""A generator: it samples from the policy version that it is given."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from infra.cluster import pace
from infra.cluster.cancellation import cancellation_check, leaving_check
from infra.cluster.resident import drop, resident_now
from infra.cluster.timeline import waiting_for_weights
from infra.storage import place, store
from infra.storage.fence import Fence
from infra.weights.version import PolicyVersion, weights_uri
from rl.audit import AuditScores
from rl.config import OURS, PolicyConfig, SamplingConfig
from rl.environments.interface import Interface
from rl.records import Maker, Problem, Rollouts
from rl.sampling.server import Server
from rl.slices import SliceEnd, SoFar
from tasks.calls.held import held
from tasks.calls.inflight import Inflight, Sampler, Swaps
from tasks.calls.weights import Weights, versions_of

if TYPE_CHECKING:
    from infra.weights.mirror import Mirror

POLL_SECONDS = 0.25
_sampling = threading.Lock()  # of the resident weights, however many threads a worker has


class BrokenPolicyError(RuntimeError):
    """A policy that cannot be sampled from."""


# of `Generator.generate`, in a lease
Arguments = tuple[PolicyVersion, int, Sequence[int], Sequence[Problem], SoFar | None]


@dataclass(frozen=True)
class Generator:
    """What determines how a generator samples; the policy that its methods work with is held resident by the worker on
    which they are called."""

    policy: PolicyConfig
    sampling: SamplingConfig
    samples: int  # completions per problem
    seed: int
    greedy: bool = False
    patience: float = 300.0  # seconds that the storage may be away
    public: str | None = None  # the model that the run started from, where each machine loads it by itself
    inflight: Inflight | None = None  # None: a lease is of one version
    slice_seconds: float | None = None  # see `rl.slices.SliceEnd`; None: a lease is handed in whole
    interface: Interface | None = None  # of the environment that is acted on: a turn of each completion is drawn

    def generate(
        self,
        version: PolicyVersion,
        step: int,
        groups: Sequence[int],
        problems: Sequence[Problem],
        so_far: SoFar | None = None,
    ) -> Rollouts:
        """One lease: sample completions of these problems, which have these numbers within the step. In flight
        ``version`` is the oldest that its tokens are of, and ``step`` bounds the newest. It goes on from
        ``so_far``, which others have drawn. In slices it ends before all completions are over.

        Raises:
            BrokenPolicyError: its log-probs are not finite.
            ServerError: by a server that does not do what it is asked to.
        """
        from rl.model.memory import yield_memory
        from rl.model.policy import dtype_name
        from rl.sampling.engine import Hooks, no_swap, to_the_end
        from rl.sampling.sampler import sample

        check = cancellation_check()
        if self.policy.engine != OURS:
            from tasks.calls.served import generate_served

            with _alone(check):
                rollouts = generate_served(
                    self.weights,
                    version,
                    problems,
                    self.sampling,
                    samples=self.samples,
                    seed=self.seed,
                    step=step,
                    groups=groups,
                    greedy=self.greedy,
                    check=check,
                )
            pace.note(rollouts.generated_tokens, rollouts.seconds)
            return rollouts
        with _alone(check), self._sampler(version, step, check) as (sampler, swaps):
            hooks = Hooks(
                between_tokens=check,
                fresh=no_swap if swaps is None or self.greedy else partial(swaps.into, sampler),
                kv_versions=0 if swaps is None else swaps.of.kv_versions,
                stop_now=to_the_end if self.slice_seconds is None else SliceEnd(self.slice_seconds, leaving_check()),
            )
            rollouts = sample(
                sampler.policy,
                sampler.version.step,
                problems,
                self.sampling,
                samples=self.samples,
                seed=self.seed,
                step=step,
                groups=groups,
                greedy=self.greedy,
                slots=sampler.slots,
                kept=sampler.kept if self._keeps_turns else None,
                hooks=hooks,
                so_far=so_far,
                interface=self.interface,
            )
            yield_memory(sampler.policy.device)
            newest, maker = sampler.version, Maker(dtype=dtype_name(sampler.policy.dtype))
        rollouts = replace(rollouts, makers=(maker,) * len(problems))
        pace.note(rollouts.generated_tokens, rollouts.seconds)
        # its completions would be noise, and what is broken would look like a policy that solves nothing
        if not np.isfinite(rollouts.logprobs).all():
            raise BrokenPolicyError(
                f"policy {newest} ({newest.uri}) gives log-probs that are not finite: its weights are broken, or its "
                "arithmetic overflows (see policy.dtype)"
            )
        return rollouts

    def score(self, version: PolicyVersion, rollouts: Rollouts) -> AuditScores | None:
        """Log-probs of the completions' tokens by the policy that this worker samples from, to audit who has sampled
        them; None where it has a later version already. Of the rollouts only prompts, tokens, lengths and which
        are trained are read.

        Raises:
            NoRoomError: one sequence does not fit into the device's memory.
        """
        from rl.learning.scoring import Scoring
        from rl.model.policy import dtype_name

        check = cancellation_check()
        with _alone(check):
            if self._is_past(version, check):
                return None
            with self._sampler(version, version.step, check) as (sampler, _):
                scoring = Scoring(sampler.policy)
                found = scoring.logprobs(rollouts, self.sampling.temperature, between_passes=check)
                return AuditScores(found, dtype_name(sampler.policy.dtype))

    def _is_past(self, version: PolicyVersion, check: Callable[[], None]) -> bool:
        """Whether this worker would have to go back to `version`, for which it would read all of its weights."""
        from infra.weights.mirror import Mirror

        sampler = resident_now("sampler", self.weights.key(version))
        if isinstance(sampler, Sampler) and sampler.version == version:
            return False
        mirror = resident_now("mirror", versions_of(version))
        step = mirror.step(check) if isinstance(mirror, Mirror) else None
        return step is not None and step > version.step

    @contextmanager
    def _sampler(
        self, version: PolicyVersion, step: int, check: Callable[[], None]
    ) -> Iterator[tuple[Sampler, Swaps | None]]:
        """The resident sampler with this version's weights, or in flight newer ones, and what it may go on with."""
        from rl.sampling.prefix_cache import PrefixCache
        from rl.sampling.slots import Slots

        weights = self.weights
        mirror = weights.mirror(version)
        swaps = None if self.inflight is None else Swaps(self.inflight, mirror, step)
        first = version if swaps is None else swaps.newest(version)

        def load() -> Sampler:
            policy = weights.load(mirror, first, check)
            return Sampler(policy, Slots(policy), first, PrefixCache())

        with ExitStack() as stack:
            with waiting_for_weights(mirror.take_fetched):
                key = weights.key(first)
                sampler = stack.enter_context(held("sampler", key, load, again=True))
                passed = swaps is not None and swaps.passed(sampler, first)
                if not passed and not _loaded(sampler, mirror, first, check):
                    del sampler  # two would not fit
                    stack.close()
                    drop("sampler")
                    sampler = stack.enter_context(held("sampler", key, load, again=True))
            sampler.session = None if self.inflight is None else self.inflight.session
            yield sampler, swaps

    @property
    def _keeps_turns(self) -> bool:
        """Whether keys and values are kept for the next turn. What another one draws, without them, may differ in its
        last bits; in flight weights and so bits depend on who is quick, but elsewhere they are promised."""
        return self.interface is not None and self.inflight is not None and not self.greedy

    @property
    def weights(self) -> Weights:
        """Where its versions come from."""
        return Weights(self.policy, self.public, self.patience)


def _loaded(sampler: Sampler, mirror: "Mirror", version: PolicyVersion, check: Callable[[], None]) -> bool:
    """Load this version into it; False where that is of another architecture."""
    if sampler.version == version:
        return True
    with mirror.at(version, check) as found:
        return sampler.load(found, version)


def check_server(policy: PolicyConfig) -> None:
    """Raise ServerError unless the server of ``policy.engine`` answers this worker, and can be given weights."""
    Server(policy.engine).open()


def prefetch(version: PolicyVersion, session: Fence) -> None:
    """Begin to fetch a version that this session of its trainer has just published, if this worker samples from the one
    before it. Returns at once; a call that is sampling goes on, perhaps with it (`Inflight`)."""
    from infra.weights.mirror import Mirror

    mirror = resident_now("mirror", versions_of(version))
    if isinstance(mirror, Mirror):
        mirror.prefetch(version, session)


def store_model(model: str, config: PolicyConfig, home: str) -> PolicyVersion:
    """Store a model that transformers can load as version 0 of itself, so that every generator can fetch it: weights in
    their own type, whatever this worker computes in.

    Raises:
        UnknownModelError: transformers cannot load it.
    """
    from infra.weights.whole import keep_whole
    from rl.loading.policy import load_policy
    from rl.model.policy import own_dtype, save_base
    from rl.model.skeleton import settings_of

    with _alone(lambda: None):
        policy = load_policy(model, config, whole=True)
    name = re.sub(r"[^\w.-]+", "-", model).strip("-")
    with store.scratch(home) as folder:
        save_base(policy, folder, own_dtype(settings_of(model)))
        return keep_whole(weights_uri(place.join(home, name), 0), folder)


@contextmanager
def _alone(check: Callable[[], None]) -> Iterator[None]:
    """One call samples at a time: another one with another version, such as an evaluation's, would replace the weights
    under it. ``check`` is called while that is waited for."""
    while not _sampling.acquire(timeout=POLL_SECONDS):
        check()
    try:
        yield
    finally:
        _sampling.release()
