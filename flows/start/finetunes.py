"""A run that trains on examples, on storage: how one begins, how one goes on, and the model that it has made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import yaml

from flows.config import EvalConfig, TrainConfig
from flows.finetune_config import FinetuneConfig, RewardModelConfig
from flows.options.plain_yaml import load_yaml
from flows.options.reading import OptionError, differences, read_config, to_yaml
from flows.start.defaults import with_rate
from flows.start.lineage import save_examples, saved_examples, trained_before
from flows.start.runs import NEWEST, UNNAMED, known_run, meant, new_name, new_place, without_secrets
from flows.start.whole_paths import whole_problems
from infra.runs.checkpoints import CONFIG, MODEL, SETTINGS, NotARun, is_run, resolve_run, state_uri
from infra.runs.tracking import TrackingConfig
from infra.storage import place, store
from infra.weights.version import SyncConfig
from rl.config import REWARD_MODEL, ProblemsConfig
from rl.problems.tables import ProblemError
from rl.verifiers.spec import VerifierError
from tasks.sets.example_set import ExampleSet

F = TypeVar("F", bound=FinetuneConfig)
S = TypeVar("S", bound=ProblemsConfig)

MOST_BYTES = 2**20
MAY_CHANGE = (
    *("steps", "run", "cluster", "placement", "tracking", "checkpoint", "evaluate_every", "policy.device"),
    *("optimizer.lr", "optimizer.microbatch_tokens", "optimizer.checkpointing"),
)


@dataclass(frozen=True)
class Finetune(Generic[F]):
    """A run and its configuration."""

    uri: str
    config: F
    resumed: bool
    saved: F | None = None  # of a resumed run: the configuration that `config` was made from
    model_named: bool = False  # the command that resumes it names its model, too
    notes: tuple[str, ...] = ()  # for people: what was chosen

    @property
    def name(self) -> str:
        return self.uri.rstrip("/").rpartition("/")[2]

    @property
    def patience(self) -> float:
        return SyncConfig().patience

    @property
    def tracking(self) -> TrackingConfig:
        return self.config.tracking

    @property
    def begun(self) -> bool:
        return is_finetune(self.uri)

    @property
    def steps(self) -> int:
        """Updates; resolved when it begins."""
        assert self.config.steps is not None
        return self.config.steps

    def with_steps(self, examples: ExampleSet) -> "Finetune[F]":
        """The same with an epoch's number of steps, where none was given."""
        if self.config.steps is not None:
            return self
        steps = -(-len(examples.train) // self.config.batch)
        note = f"steps {steps}: one epoch of {len(examples.train)} examples"
        return replace(self, config=self.config.model_copy(update={"steps": steps}), notes=(*self.notes, note))

    def save(self, examples: ExampleSet) -> None:
        """Write down what it is trained on, and its configuration without secrets; it exists from then on."""
        if not self.resumed:
            save_examples(self.uri, examples.digest, examples.train, trained_before(self.config.policy.model))
        place.write_text(
            place.join(self.uri, SETTINGS), f"method: {self.config.method}\n{to_yaml(without_secrets(self.config))}"
        )

    def refuse_other_examples(self, examples: ExampleSet) -> None:
        """Raise ProblemError where these are not what it was trained on."""
        if (kept := saved_examples(self.uri)) and kept.get("digest") != examples.digest:
            raise ProblemError(
                f"{self.name} cannot be resumed: the examples of {self.config.problems.path} are not those that it was "
                "trained on; restore the file, or start a new run"
            )


def is_finetune(uri: str) -> bool:
    """Whether a run lies there that was trained on examples."""
    return place.exists(place.join(uri, SETTINGS))


def known_run_or_finetune(name: str, home_runs: str) -> str:
    """The URI of a run of that name, which exists, whether it learns from rewards or from examples; of `newest`, of the
    newest one that has made a step. Raises NotARun."""
    if name != NEWEST:
        uri = resolve_run(name, home_runs)
        return uri if is_finetune(uri) else known_run(name, home_runs)
    written = {uri: place.modified(place.join(uri, SETTINGS)) for uri in place.folders(home_runs)}
    tuned = {uri: when for uri, when in written.items() if when is not None and any(store.versions(state_uri(uri)))}
    if not tuned:
        return known_run(name, home_runs)
    newest = max(tuned, key=tuned.__getitem__)
    try:
        trained = known_run(name, home_runs)
    except NotARun:
        return newest
    when = place.modified(place.join(trained, CONFIG))
    return newest if when is None or when < tuned[newest] else trained


def new_finetune(config: F, home_runs: str) -> Finetune[F]:
    """The run that ``config`` describes; nothing is written yet. Raises ValueError where it names no examples, and as
    `new_place` does."""
    if config.problems.path is None:
        raise ValueError("problems: name a file of examples: CSV, JSON Lines or Parquet")
    config, notes = with_rate(config.model_copy(update={"problems": _whole(config)}))
    uri = new_place(config.run, f"{new_name(config)}-{config.method}", home_runs)
    return Finetune(uri, config, resumed=False, notes=tuple(notes))


def resumed_finetune(kind: type[F], name: str, home_runs: str, over: Callable[[Mapping[str, Any]], F]) -> Finetune[F]:
    """The saved run with its settings as ``over`` changes the saved ones; nothing is written yet.

    Raises:
        NotARun: there is no such run, or it is damaged.
        OptionError: a change contradicts what it has learned so far.
    """
    uri = resolve_run(name, home_runs)
    base = saved_settings(uri, name, home_runs)
    method = base.pop("method", None)
    if method != kind.method:
        raise OptionError(f"{name} is a run of rlvf {method}; resume it by that")
    saved = read_config(kind, file=None, overrides={}, base=base)
    if saved.problems.path is None:
        raise NotARun(f"{place.join(uri, SETTINGS)} is damaged: it names no examples")
    saved = saved.model_copy(update={"problems": _whole(saved)})
    base = saved.model_dump(mode="json")
    now = over(base)
    now = now.model_copy(update={"problems": _whole(now)})
    base["policy"]["model"] = UNNAMED
    named = over(base).policy.model != UNNAMED
    contradicting = [
        line for line in differences(saved, without_secrets(now)) if not line.partition(":")[0].startswith(MAY_CHANGE)
    ]
    if contradicting:
        raise OptionError(f"{name} cannot be resumed with {', '.join(contradicting)}; leave it out, or start a new run")
    made = max(store.versions(state_uri(uri)), default=0)
    if now.steps is not None and now.steps < made:
        raise OptionError(f"steps {now.steps}: {name} has made {made} already; give more, or leave it out")
    return Finetune(uri, now, resumed=True, saved=saved, model_named=named)


def made_model(name: str, home_runs: str, *, rewards: bool = False) -> str | None:
    """Where the model lies that a run of that name has made of examples; None where it is no such run's.

    Raises ValueError where it is not finished, or a reward model and none is wanted, or the other way round."""
    uri = resolve_run(name, home_runs)
    if not is_finetune(uri):
        return None
    method = saved_settings(uri, name, home_runs).get("method")
    if (method == RewardModelConfig.method) != rewards:
        raise ValueError(
            f"{name}: is a policy, made by rlvf {method}; a reward model is made by rlvf reward-model"
            if rewards
            else f"policy.model {name!r}: is a reward model, which generates nothing; score with it: "
            f"--verifier reward-model:{name}"
        )
    model = place.join(uri, MODEL)
    if not place.exists(model):
        raise ValueError(f"{name}: has made no model yet; go on with it: rlvf {method} --resume {name}")
    return model


def with_made_model(config: Any, home_runs: str) -> Any:
    """A configuration with a policy; where that is a run's that was trained on examples, its model."""
    if isinstance(config, TrainConfig | EvalConfig):
        config = _with_reward_models(config, home_runs)
    found = made_model(config.policy.model, home_runs)
    if found is None:
        return config
    policy = config.policy.model_copy(update={"model": str(place.local_path(found) or found)})
    return config.model_copy(update={"policy": policy})


def _with_reward_models(config: Any, home_runs: str) -> Any:
    """The configuration with the reward models of its verifiers by where they lie."""

    def named(name: str | None) -> str | None:
        if name is None or not name.startswith(REWARD_MODEL):
            return name
        return f"{REWARD_MODEL}{_reward_model(name.removeprefix(REWARD_MODEL), home_runs)}"

    def of_set(each: S) -> S:
        judge = named(each.verifier)
        return each if judge == each.verifier else each.model_copy(update={"verifier": judge})

    verifier = config.verifier
    changed: dict[str, Any] = {}
    if (name := named(verifier.name)) != verifier.name:
        changed["name"] = name
    if verifier.reward_model is not None:
        changed["reward_model"] = _reward_model(verifier.reward_model, home_runs)
    sets: dict[str, Any] = {"problems": of_set(config.problems)}
    sets |= {name: tuple(map(of_set, getattr(config, name))) for name in ("mix", "evals") if hasattr(config, name)}
    sets = {name: of for name, of in sets.items() if of != getattr(config, name)}
    if changed:
        sets["verifier"] = verifier.model_copy(update=changed)
    return config.model_copy(update=sets) if sets else config


def _reward_model(name: str, home_runs: str) -> str:
    """Where the reward model of that run lies, or the one that is named by its folder. Raises VerifierError."""
    if not name:
        raise VerifierError(f"verifier {REWARD_MODEL!r}: name the run of rlvf reward-model, {REWARD_MODEL}RUN")
    uri = resolve_run(name, home_runs)
    if is_finetune(above := uri.rpartition("/")[0]) and uri.endswith(f"/{MODEL}"):
        uri = above
    try:
        found = made_model(uri, home_runs, rewards=True)
    except ValueError as error:
        raise VerifierError(f"verifier {REWARD_MODEL}{error}") from error
    if found is None:
        what = "is a run of rlvf train" if is_run(uri) else f"is no run of rlvf reward-model{meant(name, home_runs)}"
        raise VerifierError(f"verifier {REWARD_MODEL}{name}: {what}; train one: rlvf reward-model --problems PAIRS")
    return found


def _whole(config: FinetuneConfig) -> Any:
    path = config.problems.path
    return config.problems.model_copy(update={"path": None if path is None else whole_problems(path)})


def saved_settings(uri: str, name: str, home_runs: str) -> dict[str, Any]:
    """The settings of the run of that name, and its method. Raises NotARun."""
    at = place.join(uri, SETTINGS)
    if not place.exists(at):
        if is_run(uri):
            raise NotARun(f"{name} is a run of rlvf train; go on with it by: rlvf train --resume {name}")
        raise NotARun(f"{uri} is not a run on examples: it has no {SETTINGS}{meant(name, home_runs)}")
    try:
        found = load_yaml(place.read_text(at, MOST_BYTES))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NotARun(f"{at} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise NotARun(f"{at} is damaged: it holds no settings")
    return found
