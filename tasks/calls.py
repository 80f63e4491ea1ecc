"""The calls that run on generators and trainers. Each is idempotent: it names the version it works on, the model is
held in the worker's process as a cache of that version, and a call that runs again after its answer was lost changes
nothing."""

import math
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infra import checkpoints, disk, pace, store, weights
from infra.resident import drop, resident
from infra.store import Folder
from infra.timeline import waiting_for_weights
from infra.wanted import stop_when_unwanted
from infra.weights import PolicyVersion
from rl import grammar
from rl.config import LossConfig, OptimizerConfig, PolicyConfig, SamplingConfig
from rl.learner import Learned, Learner
from rl.policy import Policy, choose_device, choose_dtype, load_policy, save_policy
from rl.records import Batch, Problem, Rollouts
from rl.sampler import sample
from rl.supervised import demonstrations, imitate
from rl.tiny import build_model, build_tokenizer


@dataclass(frozen=True)
class TrainerSpec:
    """What determines a trainer's work; the resident learner is kept by it."""

    run_uri: str
    source: str  # where version 0 comes from: a hub id, a folder, or the URI of a stored one
    policy: PolicyConfig
    optimizer: OptimizerConfig
    loss: LossConfig
    temperature: float
    keep_last: int  # checkpoints
    keep_published: int  # weight versions


@dataclass(frozen=True)
class GeneratorSpec:
    """What determines how a generator samples."""

    policy: PolicyConfig
    sampling: SamplingConfig
    samples: int  # completions per problem
    seed: int
    greedy: bool = False


@dataclass
class Sampler:
    """A generator's resident policy and the version in it."""

    policy: Policy
    version: PolicyVersion


# -- generators


class BrokenPolicyError(RuntimeError):
    """A policy that cannot be sampled from."""


def _sampler(config: PolicyConfig, version: PolicyVersion) -> Sampler:
    def load() -> Sampler:
        with _fetched(version) as folder:
            return Sampler(load_policy(str(folder.path), config), version)

    sampler = resident("sampler", config, load)
    if sampler.version != version:
        try:
            with _fetched(version) as folder:
                sampler.policy.load_weights(folder.path)
        except ValueError:  # another architecture
            drop("sampler")
            return resident("sampler", config, load)
        except BaseException:
            drop("sampler")  # the weights may be a mixture of two versions
            raise
        sampler.version = version
    return sampler


@contextmanager
def _fetched(version: PolicyVersion) -> Iterator[Folder]:
    """The version's files; all the time inside is waiting for weights."""
    with waiting_for_weights() as waiting, weights.fetch(version) as folder:
        waiting.bytes += folder.manifest.size
        yield folder


def generate(
    spec: GeneratorSpec, version: PolicyVersion, step: int, groups: Sequence[int], problems: Sequence[Problem]
) -> Rollouts:
    """One lease: sample completions of these problems, which have these numbers within the step.

    Raises:
        BrokenPolicyError: its log-probs are not finite.
    """
    sampler = _sampler(spec.policy, version)
    rollouts = sample(
        sampler.policy,
        version.step,
        problems,
        spec.sampling,
        samples=spec.samples,
        seed=spec.seed,
        step=step,
        groups=groups,
        greedy=spec.greedy,
        between_tokens=stop_when_unwanted(),
    )
    pace.note(rollouts.generated_tokens, rollouts.seconds)
    # its completions would be noise, and what is broken would look like a policy that solves nothing
    if not np.isfinite(rollouts.logprobs).all():
        raise BrokenPolicyError(
            f"policy {version} ({version.uri}) gives log-probs that are not finite: its weights are broken, or its "
            "arithmetic overflows (see policy.dtype)"
        )
    return rollouts


def store_model(model: str, config: PolicyConfig, home: str) -> PolicyVersion:
    """Store a model that transformers can load as version 0 of itself, so that every generator can fetch it.

    Raises:
        UnknownModelError: transformers cannot load it.
    """
    policy = load_policy(model, config)
    with _scratch(home) as folder:
        save_policy(policy, folder)
        return weights.publish(store.join(home, re.sub(r"[^\w.-]+", "-", model).strip("-")), 0, folder, move=True)


# -- the trainer


def _learner(spec: TrainerSpec, step: int | None) -> tuple[Learner, list[str]]:
    """The resident learner at version ``step`` or the one after it, from the newest checkpoint if it must be loaded
    (whatever that holds if ``step`` is None), with the warnings that loading gave."""
    warnings: list[str] = []

    def load() -> Learner:
        saved = checkpoints.newest(spec.run_uri, warn=warnings.append)
        if saved is None:
            with _weights_of(spec.source) as path:
                return Learner(load_policy(path, spec.policy, master=True), spec.optimizer)
        with saved:
            learner = Learner(load_policy(str(saved.path), spec.policy, master=True), spec.optimizer)
            learner.restore(saved.path)
        return learner

    learner = resident("learner", spec, load)
    if step is not None and learner.step not in (step, step + 1):
        drop("learner")
        learner = resident("learner", spec, load)
        if learner.step not in (step, step + 1):
            raise RuntimeError(
                f"{spec.run_uri}: the newest intact checkpoint is of version {learner.step}, but version {step} is "
                "needed; resume the run to go on from there"
            )
    return learner, warnings


def _save(spec: TrainerSpec, learner: Learner, figures: Mapping[str, float]) -> None:
    with _scratch(spec.run_uri) as folder:
        learner.save(folder)
        checkpoints.save(spec.run_uri, learner.step, folder, {"figures": dict(figures)}, spec.keep_last, move=True)


@contextmanager
def _scratch(uri: str) -> Iterator[Path]:
    """A new folder, below ``uri`` where that is local, so that its files can be moved into place. Those that killed
    workers left there are removed."""
    local = store.local_path(uri)
    if local is None:
        with tempfile.TemporaryDirectory(prefix="rlvf-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    disk.sweep(local)
    with disk.temporary_beside(local / "scratch") as folder:
        yield folder


@contextmanager
def _weights_of(source: str) -> Iterator[str]:
    """What transformers can load: the hub id or folder itself, or a copy of what is stored elsewhere."""
    if "://" not in source:
        yield source
        return
    with store.read_folder(source) as folder:
        yield str(folder.path)


@dataclass(frozen=True)
class Begun:
    """Where a trainer stands when a run starts."""

    step: int
    learned: Learned | None  # by the update that made this version
    figures: dict[str, float]  # of the batch that it learned from
    warnings: tuple[str, ...]


def begin(spec: TrainerSpec) -> Begun:
    """Load the newest checkpoint, or version 0 and save it as the first one."""
    drop("learner")
    learner, warnings = _learner(spec, None)
    if learner.step == 0:
        _save(spec, learner, {})
    saved: Any = store.read_manifest(store.join(checkpoints.state_uri(spec.run_uri), str(learner.step))).meta["figures"]
    return Begun(learner.step, learner.learned, saved, tuple(warnings))


def update(spec: TrainerSpec, step: int, batch: Batch, figures: Mapping[str, float]) -> Learned:
    """Make version ``step + 1`` from ``step`` and save it; if it was made before, say what that update did.

    ``figures`` of the batch are kept with the checkpoint, so that a run that is killed before they are logged has them.
    """
    started = time.perf_counter()
    learner, _ = _learner(spec, step)
    if learner.step == step + 1:
        assert learner.learned is not None  # every update leaves its record
        return learner.learned
    try:
        learned = learner.update(batch, spec.loss, spec.temperature)
        learner.learned = learned = replace(learned, seconds=time.perf_counter() - started)
        _save(spec, learner, figures)
    except BaseException:
        drop("learner")  # it may be half-way between two versions
        raise
    return learned


def publish(spec: TrainerSpec, step: int) -> PolicyVersion:
    """Store version ``step`` for generators and remove versions that none needs any more."""
    learner, _ = _learner(spec, step)
    if learner.step != step:
        raise RuntimeError(f"asked to publish version {step}, but the trainer is at {learner.step}")
    with _scratch(spec.run_uri) as folder:
        save_policy(learner.policy, folder, learner.policy.dtype)
        version = weights.publish(spec.run_uri, step, folder, move=True)
    weights.prune(spec.run_uri, keep=range(step + 1 - spec.keep_published, step + 1))
    return version


# -- the warm-up


@dataclass(frozen=True)
class WarmUpSpec:
    """What determines a warm-up, and where it computes; the resident learner is kept by it."""

    steps: int
    batch: int  # problems per update
    optimizer: OptimizerConfig
    seed: int
    policy: PolicyConfig
    threads: int  # while warming up: the other workers have nothing to do

    def determining(self) -> dict[str, Any]:
        """The settings that the result depends on."""
        return {
            "steps": self.steps,
            "batch": self.batch,
            "optimizer": self.optimizer.model_dump(mode="json"),
            "seed": self.seed,
            "dtype": self.policy.dtype,
        }


def _fresh(spec: WarmUpSpec) -> Learner:
    device = choose_device(spec.policy.device)
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, spec.seed)
    torch.nn.Module.to(model, device)  # transformers wraps its own so that types are lost
    return Learner(Policy(model, tokenizer, device, choose_dtype(spec.policy.dtype, device)), spec.optimizer)


def warm_up(spec: WarmUpSpec, until: int) -> float:
    """Supervised updates until ``until`` have been made; returns the last one's loss in nats per token. A fresh process
    makes them all, from the first."""
    learner = resident("warm-up", spec, lambda: _fresh(spec))
    before = torch.get_num_threads()
    torch.set_num_threads(spec.threads)
    loss = math.nan
    try:
        while learner.step < until:
            problems = grammar.draw(spec.seed, learner.step, spec.batch)
            left = 1 - learner.step / spec.steps
            loss = imitate(learner, demonstrations(learner.policy, problems), scale=max(left, 0.05))
            learner.step += 1
    finally:
        torch.set_num_threads(before)
    return loss


def keep_warm_up(spec: WarmUpSpec, uri: str) -> None:
    """Store the finished warm-up and let go of its learner."""
    warm_up(spec, spec.steps)
    with _scratch(uri.rpartition("/")[0]) as folder:
        save_policy(resident("warm-up", spec, lambda: _fresh(spec)).policy, folder)
        store.write_folder(uri, folder, move=True)
    drop("warm-up")
