"""Resuming a run with other settings, laid over the saved ones: the command's, or those of a flow run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel

from flows.config import TrainConfig
from flows.options.reading import OptionError, differences, read_config
from flows.options.tree import flatten, known_options, leaf_values, nest, superseded
from flows.start.defaults import with_defaults
from flows.start.runs import UNNAMED, Run, known_run, with_secrets, without_secrets
from flows.start.saved import saved_config
from flows.start.trust import trusted
from flows.start.whole_paths import with_whole_paths
from infra.runs.checkpoints import resolve_run, state_uri
from infra.storage import store
from rl.algorithms import ALGORITHMS

C = TypeVar("C", bound=BaseModel)

# what a resumed run may do differently: more steps, other machines, other bookkeeping
MAY_CHANGE = (
    "steps",
    "run",
    "cluster",
    "placement",
    "tracking",
    "checkpoint",
    "evals",
    "audit",
    "lease",
    "inflight",
    "batch.slice_seconds",
    "staleness",  # what a run whose batches are too old is told to lower: those on their way are made again
    "algorithm.correction",  # whose bounds one is told to widen of which too much is left out
    "policy.device",
    "policy.engine",
    "sampling.max_tokens",  # which one is told to lower that runs out of memory, to raise whose completions are cut
    "verifier.seconds",
    "verifier.memory_mb",
    "verifier.reads",
    "optimizer.lr",  # what a run that diverges is told to lower, or its critic's
    "critic.lr",
    "optimizer.microbatch_tokens",  # and one that does not fit into memory
    "optimizer.checkpointing",
)


def resume_run(name: str, home_runs: str, file: str | None, overrides: Mapping[str, str]) -> Run:
    """The saved run with these changes; nothing is written yet.

    Raises:
        NotARun: there is no such run.
        OptionError: a change contradicts what the run has learned so far.
    """

    def over(base: Mapping[str, Any]) -> TrainConfig:
        return read_config(TrainConfig, file=file, overrides=overrides, base=base)

    return resumed(name, home_runs, over, "--")


def resumed(name: str, home_runs: str, over: Callable[[Mapping[str, Any]], TrainConfig], dashes: str = "") -> Run:
    """The saved run with its settings as ``over`` changes the saved ones; messages name an option with ``dashes``.
    Raises as `resume_run` does."""
    uri = known_run(name, home_runs)
    saved = with_whole_paths(saved_config(uri))  # those of older versions depend on where one stands
    base = saved.model_dump(mode="json")
    now = with_whole_paths(with_secrets(over(base)))
    base["policy"]["model"] = UNNAMED
    named = over(base).policy.model != UNNAMED
    refuse_contradictions(name, saved, now)
    refuse_older_references(name, saved, now, dashes)
    made = max(store.versions(state_uri(uri)), default=0)
    if now.steps < made:
        raise OptionError(f"{dashes}steps {now.steps}: {name} has made {made} already; give more, or leave it out")
    if now.steps == made and now.optimizer.lr is not None:
        refuse_unused_rate(name, saved, now, dashes)
    if now.run is not None and now.run != saved.run and resolve_run(now.run, home_runs) != uri:
        raise OptionError(f"{dashes}resume {name} and run {now.run!r} are different runs; leave one of them out")
    return Run(uri, now, resumed=True, saved=saved, model_named=named)


def refuse_contradictions(name: str, saved: TrainConfig, now: TrainConfig) -> None:
    """Raise ``OptionError`` where ``now`` contradicts what the run ``name`` has learned so far."""
    contradicting = [
        line for line in differences(saved, without_secrets(now)) if not line.partition(":")[0].startswith(MAY_CHANGE)
    ]
    if contradicting:
        why = _of_critics(saved.algorithm.name, now.algorithm.name)
        said = f"{', '.join(contradicting)}{why}"
        raise OptionError(f"{name} cannot be resumed with {said}; leave it out, or start a new run")


def _of_critics(was: str, now: str) -> str:
    """Why these two algorithms, where both are built in, do not follow each other; empty where no critic stands in the
    way."""
    had, has = ("values" in of.needs if (of := ALGORITHMS.get(name)) else None for name in (was, now))
    if had is None or has is None or had == has:
        return ""
    return (
        f" ({now} needs a critic that has learned from every step, and the run has none)"
        if has
        else (f" ({now} has no critic, and the run's would not learn from its steps)")
    )


def refuse_older_references(name: str, saved: TrainConfig, now: TrainConfig, dashes: str = "") -> None:
    """Raise ``OptionError`` where ``now`` would have references that are removed: see `ReferenceSchedule`."""
    if now.staleness > saved.staleness and now.algorithm.kl.reference_every:
        raise OptionError(
            f"{dashes}staleness {now.staleness}: with algorithm.kl.reference_every {name} has kept the references of "
            f"staleness {saved.staleness}, and older ones are gone; give less, or leave it out"
        )


def refuse_unused_rate(name: str, saved: TrainConfig, now: TrainConfig, dashes: str = "") -> None:
    """Raise ``OptionError`` where ``now`` would write a learning rate into a finished run that no step has used."""
    if now.optimizer.lr != saved.optimizer.lr:
        raise OptionError(
            f"{dashes}optimizer.lr: {name} has made all of its {now.steps} steps; give more {dashes}steps, too"
        )


def resume_with(name: str, home_runs: str, config: TrainConfig, *, form: bool = False) -> tuple[Run, list[str]]:
    """The saved run with the settings that are set in ``config``, and a line for each that was set in vain: with
    ``form`` a default changes nothing, as Prefect's form sends the defaults that it shows. Nothing is written yet.

    Raises:
        NotARun: there is no such run.
        NotTrustedError: what it brings is not `trusted`.
        OptionError: a change contradicts what the run has learned so far.
    """
    sent, given = set_leaves(config), set_leaves(config, form=form)
    run = resumed(name, home_runs, laid_over(TrainConfig, given))
    trusted(run)  # before anything that it names is asked: its model has the number of parameters
    run = replace(run, config=with_defaults(run.config)[0])
    if run.saved is not None and run.config.steps in store.versions(state_uri(run.uri)):
        refuse_unused_rate(name, run.saved, run.config)
    before, unchanged = dict(leaf_values(run.saved or run.config)), dict(leaf_values(config))
    kept = [
        f"{path} stays {_plain(before[path])!r}, as saved: {_plain(unchanged[path])!r} is the default, which a form "
        "sends unasked"
        for path in sent.keys() - given.keys() - {"run"}
        if before[path] != unchanged[path]
    ]
    return run, sorted(kept)


def set_leaves(config: BaseModel, *, form: bool = False) -> dict[str, Any]:
    """What is set in ``config`` by dotted path; with ``form`` the defaults are left out, as Prefect's form sends them
    unasked."""
    given = config.model_dump(mode="json", exclude_unset=True, exclude_defaults=form)
    return dict(flatten(known_options(type(config)), given))


def laid_over(kind: type[C], given: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], C]:
    """What makes a configuration of saved settings and these, which are by dotted path."""

    def over(base: Mapping[str, Any]) -> C:
        options = known_options(kind)
        below = dict(flatten(options, base))
        old = superseded(options, below, given)
        whole = nest({**{path: value for path, value in below.items() if path not in old}, **given})
        return read_config(kind, file=None, overrides={}, base=whole)

    return over


def _plain(value: Any) -> Any:
    """As a YAML file has it."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else value
