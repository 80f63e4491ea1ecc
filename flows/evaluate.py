"""Flow `rlvf-eval`: how well a policy solves a set of problems."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

from prefect import flow

from flows.config import EvalConfig
from flows.report.summary import evaluation_outcome
from flows.run.failure import name_the_cause
from flows.run.plans import digest_of
from flows.run.recovery import with_recovery
from flows.run.workplace import Workplace, open_workplace
from flows.sft import sft, warm_up_for
from flows.start.as_trained import Asked, asked_evaluation
from flows.start.defaults import with_eval_defaults
from flows.start.finetunes import with_made_model
from flows.start.preflight import check_model
from flows.start.runs import Run, local_folder, newest_weights, with_secrets
from flows.start.tracked import mlflow_owner, mlflow_run
from infra.home import runs_uri
from infra.runs.checkpoints import is_run
from infra.runs.metric_log import read_metrics
from infra.runs.record import EVALUATIONS, read_record
from infra.runs.tracking import Tracker
from infra.storage import place
from infra.storage.faults import is_forbidden
from infra.storage.typed import read_typed
from infra.weights.pin import newest_pinned
from infra.weights.version import PolicyVersion, published_version
from rl.config import TINY, whole_path
from tasks.batch.batch_config import BatchConfig
from tasks.calls.generator import Generator, store_model
from tasks.evaluate import Evaluation, evaluate
from tasks.sets.named_set import set_name
from tasks.sets.problem_set import ProblemSet
from tasks.turns import check_environment
from tasks.verify import check_verifiers


@flow(name="rlvf-eval", on_failure=[name_the_cause])
def evaluate_policy(config: EvalConfig) -> Evaluation:
    """Solve the problems greedily and sampled; a run's evaluation is kept with it and logged to its MLflow run. What is
    not given is as the run was trained."""
    config = with_made_model(with_secrets(config), runs_uri())
    asked = asked_evaluation(config)
    config = asked.config
    with open_workplace(config.cluster, config.placement) as workplace:
        for note in asked.notes:
            workplace.display.say(note)
        return with_recovery(workplace, config.cluster, lambda now: evaluated(asked, now))


def evaluated(asked: Asked, workplace: Workplace) -> Evaluation:
    """The evaluation, or the one that was kept."""
    config, problems, run = asked.config, asked.problems, asked.run
    for note in check_verifiers(workplace.dispatch, problems.verifiers, problems.held_out):
        workplace.display.say(note)
    version = newest_weights(run.uri) if run is not None else stored_model(config, workplace)
    config, chosen = with_eval_defaults(config, None if run is None else run.config)
    for line in chosen:
        workplace.display.say(line)
    if run is None:
        return made(config, problems, workplace, version, None)
    if not config.again and (known := kept(evaluation_uri(run, version, config, problems))):
        workplace.display.say(f"{run.name} {version} was evaluated on {set_name(config.sets)} before")
        return concluded(known, run, workplace)
    with newest_pinned(run.uri) as version:
        return made(config, problems, workplace, version, run, edited=bool(asked.edited))


def made(
    config: EvalConfig,
    problems: ProblemSet,
    workplace: Workplace,
    version: PolicyVersion,
    run: Run | None,
    *,
    edited: bool = False,
) -> Evaluation:
    """The evaluation of this version, made now; a run's is kept with it."""
    public = run.config.policy.model if run is not None and run.config.sync.base == "public" else None
    generator = Generator(config.policy, config.sampling, config.samples, config.seed, public=public)
    if problems.environment is not None:
        interface = check_environment(workplace.dispatch, problems.environment, problems.some_played())
        generator = replace(generator, interface=interface)
    workplace.display.stage("evaluate")
    batch = BatchConfig() if run is None else run.config.batch
    evaluation = evaluate(workplace.dispatch, generator, version, problems, saw=workplace.failures.saw, batch=batch)
    if run is not None and not is_run(run.uri):
        workplace.display.say(f"{run.name} was removed meanwhile: its evaluation is not kept")
    elif run is not None:
        log(config, problems, workplace, run, evaluation, edited=edited)
        try:
            keep(evaluation_uri(run, version, config, problems), evaluation)
        except OSError as error:
            if not is_forbidden(error):
                raise
            workplace.display.say(f"{run.name} may only be read: its evaluation is not kept with it")
    return concluded(evaluation, run, workplace)


def concluded(evaluation: Evaluation, run: Run | None, workplace: Workplace) -> Evaluation:
    """The evaluation, which Prefect is told."""
    of = "" if run is None else f"{run.name}: "
    workplace.prefect.conclude([f"{of}{evaluation_outcome(evaluation)}"])
    return evaluation


def stored_model(config: EvalConfig, workplace: Workplace) -> PolicyVersion:
    """A model that is no run, stored as a version of its own."""
    model = config.policy.model
    if model == TINY:
        return published_version(sft(warm_up_for(config)))
    if note := check_model(model, workplace.runs, also_run=True):
        workplace.display.say(note)
    return workplace.dispatch.run(
        "evaluate", store_model, whole_path(model), config.policy, place.join(workplace.storage, "models")
    )


def kept(uri: str) -> Evaluation | None:
    """The evaluation kept at ``uri``, if there is one."""
    return read_typed(uri, Evaluation, "remove it, and the version is evaluated again")


def keep(uri: str, evaluation: Evaluation) -> None:
    """Keep the evaluation with the run."""
    place.write_text(uri, json.dumps(asdict(evaluation)) + "\n")


def evaluation_uri(run: Run, version: PolicyVersion, config: EvalConfig, problems: ProblemSet) -> str:
    """The URI of a version's evaluation. Its name has a digest of what decides the figures: weights, dtype, sampling,
    problems, and verifiers as they are now. What a service judges by is unknown."""
    decide = ("problems", "mix", "verifier", "held_out", "samples", "sampling", "seed")
    asked = config.model_dump(mode="json", include={**dict.fromkeys(decide, True), "policy": {"dtype"}})
    said = json.dumps([asked, version.digest + version.files, digest_of(problems, config.samples)], sort_keys=True)
    digest = hashlib.sha256(said.encode()).hexdigest()[:16]
    return place.join(run.uri, EVALUATIONS, f"v{version.step}-{set_name(config.sets)}-{digest}.json")


def plan_in_log(config: EvalConfig, problems: ProblemSet, run: Run) -> str:
    """The same for two evaluations whose figures may be points of one curve; that of the run's own where it is sampled
    as the run samples."""
    if _as_run(config, run):
        return digest_of(problems, config.samples, config.sampling.max_tokens)
    return _digest([digest_of(problems, config.samples), config.sampling.model_dump(mode="json"), config.policy.dtype])[
        :16
    ]


def _as_run(config: EvalConfig, run: Run) -> bool:
    return config.sampling == run.config.sampling and config.policy.dtype == run.config.policy.dtype


def name_in_log(config: EvalConfig, problems: ProblemSet, run: Run, folder: Path, *, edited: bool = False) -> str:
    """The problem set's name. It ends with a digest of what was asked where that name has figures of other problems,
    verifiers, samples or sampling, the run's own or an earlier evaluation's; or where the run was trained with others
    than these, which were `edited`."""
    name = set_name(config.sets)
    lines = read_record(run.uri, folder).metrics
    own = [line.plan for line in lines if f"eval/{name}/pass_at_1" in line.metrics]
    earlier = [line.plan for line in read_metrics(_log_file(folder, name)) if line.plan]  # older versions kept none
    there = own or earlier
    same = {plan_in_log(config, problems, run)}
    if _as_run(config, run):
        same.add(digest_of(problems, config.samples))  # as older versions have it
    if not edited and (not there or there[-1] in same):
        return name
    asked = [digest_of(problems, config.samples), config.sampling.model_dump(mode="json"), config.policy.dtype]
    return f"{name}-{_digest(asked)[:8]}"


def _digest(said: object) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _log_file(folder: Path, name: str) -> Path:
    return folder / f"eval-{name}.jsonl"


def log(
    config: EvalConfig,
    problems: ProblemSet,
    workplace: Workplace,
    run: Run,
    evaluation: Evaluation,
    *,
    edited: bool = False,
) -> None:
    """Log to the run's MLflow run, by `name_in_log`, at the policy's version. The run may be training."""
    folder = local_folder(run.uri, workplace.home)
    name = name_in_log(config, problems, run, folder, edited=edited)
    if name != set_name(config.sets):
        workplace.display.say(
            f"logged as eval/{name}: eval/{set_name(config.sets)} is what {run.name} measures by itself or was asked "
            "before, of other problems or by another verifier, with other samples or other sampling"
        )
    with Tracker(
        run.config.tracking.model_copy(update={"system_metrics": False}),  # those of the run are the trainer's
        home=workplace.home,
        experiment=set_name(run.config.sets),
        run_name=run.name,
        run_id=mlflow_run(run.uri),
        owner=mlflow_owner(run.uri),
        params={},
        local=_log_file(folder, name),
        guest=True,
    ) as tracker:
        tracker.log(
            evaluation.step,
            {f"eval/{name}/{what}": of for what, of in evaluation.figures().items()},
            plan_in_log(config, problems, run),
        )
