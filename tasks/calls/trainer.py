"""What the trainer does: update the policy, save it, and publish its weights."""

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue

from infra import disk
from infra.cluster.dispatch import leave_thread
from infra.cluster.resident import drop, resident, resident_now
from infra.runs import checkpoints
from infra.runs.checkpoints import MODEL
from infra.security.secrets import masked
from infra.storage import store
from infra.storage.fence import Fence
from infra.storage.retry_policy import RetryPolicy
from infra.weights.difference import Weights
from infra.weights.publisher import Published, Publisher
from infra.weights.version import SyncConfig
from rl.config import TINY, LossConfig, OptimizerConfig, PolicyConfig
from rl.learning.learner import Learned, Learner
from rl.learning.schedules import decayed
from rl.loading import load_policy
from rl.model.policy import Policy, read_weights, save_files, save_policy
from rl.model.tiny import build_model, build_tokenizer
from rl.records import Batch, Problem
from tasks.calls.published import as_published, public_model


@dataclass(frozen=True)
class TrainerSpec:
    """What determines a trainer's work; the resident learner is kept by it."""

    run_uri: str
    source: str  # where version 0 comes from: a hub id, a folder, or the URI of a stored one
    policy: PolicyConfig
    optimizer: OptimizerConfig
    loss: LossConfig
    temperature: float
    max_tokens: int  # where completions are cut
    every: int  # steps between two checkpoints
    keep_last: int  # checkpoints
    sync: SyncConfig
    window: int  # versions that a generator may be behind
    sampling: tuple[tuple[str, JsonValue], ...]  # how generators sample, for whoever reads the weights
    steps: int  # of the whole run, over which the learning rate decays
    fence: Fence  # of the session that trains: once another has taken the run, nothing is written any more


class StepsLostError(RuntimeError):
    """The trainer that had made a version is gone, and no checkpoint holds it: the steps since the newest one are to be
    made again."""

    def __init__(self, run_uri: str, newest: int, needed: int) -> None:
        super().__init__(run_uri, newest, needed)
        self.run_uri = run_uri
        self.newest = newest  # version that is kept
        self.needed = needed

    def __str__(self) -> str:
        return (
            f"{masked(self.run_uri)}: version {self.needed} is lost with the trainer that had made it; the newest "
            f"checkpoint is of version {self.newest}"
        )


_learning = threading.Lock()  # weights are not read while an update changes them, however many threads a worker has


def _learner(spec: TrainerSpec, step: int | None) -> tuple[Learner, list[str]]:
    """The resident learner at version ``step`` or the one after it, from the newest checkpoint if it must be loaded
    (whatever that holds if ``step`` is None), with the warnings that loading gave. Raises StepsLostError."""
    warnings: list[str] = []

    def load() -> Learner:
        checked = resident_now("checked", (spec.source, spec.policy))
        drop("checked")
        saved = checkpoints.newest(spec.run_uri, warn=warnings.append)
        if saved is None:
            policy = checked if isinstance(checked, Policy) else _load(spec.source, spec.policy)
            return Learner(policy, spec.optimizer)
        del checked
        with saved:
            learner = Learner(load_policy(str(saved.path), spec.policy, master=True), spec.optimizer)
            learner.restore(saved.path)
        return learner

    learner = resident("learner", spec, load)
    if step is not None and learner.step not in (step, step + 1):
        drop("learner")
        learner = resident("learner", spec, load)
        if learner.step not in (step, step + 1):
            raise StepsLostError(spec.run_uri, learner.step, step)
    return learner, warnings


def _save(spec: TrainerSpec, learner: Learner, figures: Mapping[str, float]) -> None:
    with store.scratch(spec.run_uri) as folder:
        learner.save(folder)
        meta: dict[str, JsonValue] = {"figures": dict(figures)}
        checkpoints.save(
            spec.run_uri, learner.step, folder, meta, spec.keep_last, patience=spec.sync.patience, fence=spec.fence
        )


@contextmanager
def _weights_of(source: str) -> Iterator[str]:
    """What transformers can load: the hub id or folder itself, or a copy of what is stored elsewhere."""
    if "://" not in source:
        yield source
        return
    with store.read_folder(source) as folder:
        yield str(folder.path)


def _load(source: str, policy: PolicyConfig) -> Policy:
    with _weights_of(source) as path:
        return load_policy(path, policy, master=True)


def _check(spec: TrainerSpec) -> None:
    """Raise LockLostError if another session has the run by now."""
    RetryPolicy(spec.sync.patience)(spec.fence.check)


def check_policy(policy: PolicyConfig, problems: Sequence[Problem], max_tokens: int) -> list[str]:
    """Load a model before a run exists, and see that it can be trained on such problems; what a person should know. The
    run that begins next on this worker takes it as loaded.

    Raises:
        UnknownModelError: it cannot be loaded, or not driven.
        ValueError: a prompt and ``max_tokens`` are more than it can attend to, or it cannot be told what is asked.
    """
    if policy.model == TINY:
        tokenizer = build_tokenizer()
        model = build_model(len(tokenizer), 0, 0, 0)  # whose range of positions is asked
        _check_room(Policy(model, tokenizer, torch.device("cpu"), torch.float32), problems, max_tokens)
        return []
    drop("learner")  # of an earlier run: two models would not fit
    source = policy.model
    loaded = resident("checked", (source, policy), lambda: _load(source, policy))
    _check_room(loaded, problems, max_tokens)
    notes = []
    if loaded.unnamed_end is not None:
        notes.append(
            f"a completion of {source} ends at {loaded.unnamed_end} too: its chat template ends a turn with it, though "
            "its tokenizer and generation_config.json do not name it"
        )
    unsaid = [of.system for problem in problems if (of := problem.instructions) and of.system and of.template is None]
    if loaded.tokenizer.chat_template is None and unsaid:
        notes.append(
            f"{source} has no chat template, so that it is given problems without {unsaid[0]!r}; problems.template "
            "says what a base model is given"
        )
    return notes


def _check_room(policy: Policy, problems: Sequence[Problem], max_tokens: int) -> None:
    tokens = {problem.source: len(policy.prompt_tokens(problem.prompt, problem.instructions)) for problem in problems}
    longest = max(tokens, key=tokens.__getitem__)
    try:
        policy.check_room(tokens[longest], max_tokens)
    except ValueError as error:
        raise ValueError(f"{error} (problem {longest}): shorten it, leave it out, or give fewer max_tokens") from error


@dataclass(frozen=True)
class Begun:
    """Where a trainer stands when a run starts."""

    step: int
    learned: Learned | None  # by the update that made this version
    figures: dict[str, float]  # of the batch that it learned from
    warnings: tuple[str, ...]
    vocabulary: int  # rows of the embedding: token ids are below


def begin(spec: TrainerSpec) -> Begun:
    """Load the newest checkpoint, or version 0 and save it as the first one."""
    _check(spec)
    drop("learner")
    _drop_publisher()
    learner, warnings = _learner(spec, None)
    if learner.step == 0:
        _save(spec, learner, {})
    saved: Any = store.read_manifest(store.join(checkpoints.state_uri(spec.run_uri), str(learner.step))).meta["figures"]
    embedding: Any = learner.policy.model.get_input_embeddings()
    return Begun(learner.step, learner.learned, saved, tuple(warnings), len(embedding.weight))


def update(spec: TrainerSpec, step: int, batch: Batch, figures: Mapping[str, float]) -> Learned:
    """Make version ``step + 1`` from ``step`` and save it, if it is its turn; if it was made before, say what that
    update did.

    ``figures`` of the batch are kept with the checkpoint, so that a run that is killed before they are logged has them.
    """
    started = time.perf_counter()
    _check(spec)  # the resident learner may be that of the session which took the run
    with _learning:
        learner, _ = _learner(spec, step)
        if learner.step == step + 1:
            assert learner.learned is not None  # every update leaves its record
            return learner.learned
        try:
            learner.decay = decayed(spec.optimizer.decay, step, spec.steps)
            learned = learner.update(batch, spec.loss, spec.temperature, spec.max_tokens)
            learner.learned = learned = replace(learned, seconds=time.perf_counter() - started)
            if learner.step % spec.every == 0:
                _save(spec, learner, figures)
        except BaseException:
            drop("learner")  # it may be half-way between two versions
            raise
        return learned


def publish(spec: TrainerSpec, step: int) -> Published:
    """Publish version ``step``, of the last update or the one before. The next update may run meanwhile."""
    _check(spec)
    with _learning:
        weights = _weights_at(spec, step, _learner(spec, step)[0])
        publisher = resident("publisher", _published_by(spec), lambda: _publisher(spec))
    leave_thread()
    return publisher.publish(step, weights)


def mend(spec: TrainerSpec, step: int, damaged: Sequence[str]) -> None:
    """Publish version ``step``, the last that was published, once more and whole: generators found these folders
    damaged, or missed some, and cannot get at it."""
    _check(spec)
    with _learning:
        publisher = resident("publisher", _published_by(spec), lambda: _publisher(spec))
        weights = None if publisher.has_published else _weights_at(spec, step, _learner(spec, None)[0])
    leave_thread()
    if weights is not None:  # this process is new
        publisher.publish(step, weights)
    publisher.mend(damaged)


def export(spec: TrainerSpec, step: int, name: str = MODEL, meta: Mapping[str, JsonValue] | None = None) -> str:
    """Store version ``step``, the trainer's last, for everybody who loads models with transformers; returns where. With
    the result of a run, its checkpoint is there too."""
    _check(spec)
    learner, _ = _learner(spec, step)
    assert learner.step == step
    uri = store.join(spec.run_uri, name)
    if name == MODEL and step % spec.every:
        with _learning:
            _save(spec, learner, {})
    with _learning, store.scratch(spec.run_uri) as folder:
        save_policy(learner.policy, folder, learner.policy.dtype)
        store.write_folder(uri, folder, meta=meta, move=True, fence=spec.fence, flat=True)  # for whoever copies it
    return uri


def _published_by(spec: TrainerSpec) -> tuple[Any, ...]:
    return spec.run_uri, spec.sync, spec.window, spec.fence


def _drop_publisher() -> None:
    """That of a session which has ended; others may have published since."""
    earlier = resident_now("publisher")
    if isinstance(earlier, Publisher):
        earlier.close()
        drop("publisher")


def _publisher(spec: TrainerSpec) -> Publisher:
    learner, _ = _learner(spec, None)
    files = Path(tempfile.mkdtemp(dir=disk.own_folder()))  # not a hold on the policy, which may be replaced
    save_files(learner.policy, files)
    return Publisher(
        spec.run_uri,
        spec.sync,
        window=spec.window,
        files=files,
        sampling=dict(spec.sampling),
        public=public_model(spec.source, spec.policy) if spec.sync.base == "public" else None,
        fence=spec.fence,
    )


def _weights_at(spec: TrainerSpec, step: int, learner: Learner) -> Weights:
    """The weights of version ``step``, the learner's or a kept one, as they are published."""
    auto = str(learner.policy.dtype).removeprefix("torch.")
    dtype = auto if spec.sync.dtype == "auto" else spec.sync.dtype
    if learner.step == step:
        return as_published(learner.policy.weights(), dtype)
    try:
        with checkpoints.load(spec.run_uri, step) as folder:  # the next update was faster
            return as_published(read_weights(folder.path), dtype)
    except store.NotThere:
        raise StepsLostError(spec.run_uri, learner.step, step) from None
