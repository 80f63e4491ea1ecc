"""Flows `rlvf-sft`, `rlvf-dpo`, `rlvf-reward-model`: training on examples; and the warm-up of the tiny policy, once."""

from dataclasses import replace

from prefect import flow

from flows.config import EvalConfig, TrainConfig
from flows.finetune_config import DpoConfig, FinetuneConfig, RewardModelConfig, SftConfig
from flows.report.result import FinetuneResult
from flows.run.artifacts import PrefectArtifacts
from flows.run.diverged import stop_if_diverged
from flows.run.failure import name_the_cause
from flows.run.finetuning import Finetuning
from flows.run.hold import TrainerLost
from flows.run.page import from_prefect
from flows.run.recovery import Progress, with_recovery
from flows.run.workplace import Workplace, open_workplace
from flows.start.finetunes import Finetune, new_finetune, resumed_finetune, with_made_model
from flows.start.preflight import check_model
from flows.start.resume import laid_over, set_leaves
from flows.start.runs import with_secrets
from flows.start.trust import refuse_odd_files, trusted
from infra.cluster.training_lock import TrainingLock
from infra.dispatch.calls import DispatchStoppedError
from infra.home import runs_uri
from rl.config import TINY
from rl.problems.shown import GRAMMAR, shown_of, updates
from rl.warm_up_config import WarmUpConfig
from tasks.calls.warm_up import WarmUp
from tasks.fit import fit
from tasks.warm_up import bring, is_kept, warm_up, warm_up_uri


def warm_up_spec(config: SftConfig) -> WarmUp:
    """The warm-up that ``config`` asks for."""
    asked = config.warm_up
    shown = asked.problems or GRAMMAR
    steps = asked.steps or updates(shown)
    return WarmUp(shown, steps, asked.batch, asked.optimizer, asked.seed, config.policy)


def kept_warm_up(config: SftConfig, workplace: Workplace) -> str | None:
    """Where this warm-up is kept, None if it has yet to be made. One that is kept in the home is copied to a
    storage elsewhere."""
    spec = warm_up_spec(config)
    uri, at_home = warm_up_uri(workplace.storage, spec), warm_up_uri(workplace.home, spec)
    return uri if is_kept(uri) or bring(at_home, uri) else None


@flow(name="rlvf-sft", on_failure=[name_the_cause])
def sft(config: SftConfig, resume: str | None = None) -> str:
    """Fine-tune a policy on demonstrations and return where its model is stored, in Hugging Face layout. With no
    demonstrations, warm the tiny policy up on problems that are made in code: a warm-up that was made before with the
    same settings and the same code is used again."""
    if config.problems.path is not None or resume is not None:
        return finetuned(config, resume).policy
    with open_workplace(config.cluster, config.placement) as workplace:
        return with_recovery(workplace, config.cluster, lambda now: warmed_up(config, now))


@flow(name="rlvf-dpo", on_failure=[name_the_cause])
def dpo(config: DpoConfig, resume: str | None = None) -> str:
    """Train a policy by Direct Preference Optimization on pairs and return where its model is stored."""
    return finetuned(config, resume).policy


@flow(name="rlvf-reward-model", on_failure=[name_the_cause])
def reward_model(config: RewardModelConfig, resume: str | None = None) -> str:
    """Train a reward model on pairs and return where it is stored."""
    return finetuned(config, resume).policy


def finetuned(config: FinetuneConfig, resume: str | None) -> FinetuneResult:
    """The training on examples: a new run, or with ``resume`` the rest of that one, as it was saved but for what
    ``config`` gives. It goes on where a trainer or a scheduler was lost."""
    config, progress, saved = with_secrets(config), Progress(), None
    if resume is not None:
        given = set_leaves(config, form=from_prefect())
        saved = resumed_finetune(type(config), resume, runs_uri(), laid_over(type(config), given))
        trusted(saved)  # before anything that it names is asked
        config = with_secrets(saved.config)
    with open_workplace(config.cluster, config.placement) as workplace:
        if saved is not None:
            run = replace(saved, config=config)
        else:
            config = with_made_model(config, workplace.runs)
            if note := check_model(config.policy.model, workplace.runs):
                workplace.display.say(note)
            run = new_finetune(config, workplace.runs)
            refuse_odd_files(run.uri)

        def go_on(now: Workplace) -> FinetuneResult:
            going = replace(run, resumed=True) if run.begun else run
            return run_finetuning(going, now, progress)

        return with_recovery(workplace, config.cluster, go_on, progress)


def run_finetuning(run: Finetune[FinetuneConfig], workplace: Workplace, progress: Progress) -> FinetuneResult:
    """The run, from its beginning or its newest checkpoint to its last step."""
    with Finetuning(run, first_weights(run.config, workplace), workplace, progress) as finetuning:
        for step in range(finetuning.begin(), finetuning.run.steps):
            examples, reference = finetuning.examples_of(step)
            learned = fit(workplace.dispatch, finetuning.tuner, step, examples, reference)
            finetuning.log(learned)
            progress.made(learned.step)
            stop_if_diverged(learned)
            if finetuning.is_due(learned.step):
                finetuning.evaluate(learned.step)
        return finetuning.finished()


def first_weights(config: TrainConfig | FinetuneConfig, workplace: Workplace, *, made: bool = True) -> str:
    """The source of version 0: the model named, or the tiny policy, warmed up now if it was not before and is to be
    ``made``; else "", where a run goes on from a later version or not at all."""
    if config.policy.model != TINY:
        return config.policy.model
    warm = warm_up_for(config)
    return kept_warm_up(warm, workplace) or (sft(warm) if made else "")


def warm_up_for(config: TrainConfig | EvalConfig | FinetuneConfig) -> SftConfig:
    """The warm-up of a tiny policy that is to be trained, or evaluated, on these problems: it is shown what there is of
    them, of several sets of the first that has something to show."""
    asked = WarmUpConfig() if isinstance(config, EvalConfig) else config.warm_up
    if asked.problems is None and not isinstance(config, FinetuneConfig):
        shown = [shown_of(each.path) for each in config.sets]
        asked = asked.model_copy(update={"problems": next((of for of in shown if of != GRAMMAR), GRAMMAR)})
    return SftConfig(warm_up=asked, policy=config.policy, cluster=config.cluster, placement=config.placement)


def warmed_up(config: SftConfig, workplace: Workplace) -> str:
    """Where the warm-up is stored, made now if it was not before. Raises TrainingLockLostError, and
    DispatchStoppedError when the flow's calls are stopped while it waits for the training lock."""
    if (kept := kept_warm_up(config, workplace)) is not None:
        workplace.display.say(f"the warm-up is there already: {kept}")
        return kept

    def wanted() -> None:
        if workplace.dispatch.stopped:
            raise DispatchStoppedError("waiting for the training lock was given up")

    # another warm-up, or another run, would drop the learner of this one from the trainer, and this one that of it
    with workplace.training_locks.held(
        workplace.dispatch.client, "a warm-up", workplace.display.say, TrainerLost, wanted
    ) as lock:
        if (kept := kept_warm_up(config, workplace)) is not None:  # who had the lock has made the same
            return kept
        return made_warm_up(config, workplace, lock)


def made_warm_up(config: SftConfig, workplace: Workplace, lock: TrainingLock) -> str:
    """Where the warm-up is stored, made now; its learner is the trainer's only one of a warm-up while the lock is held.
    Raises TrainingLockLostError."""
    spec = warm_up_spec(config)
    uri = warm_up_uri(workplace.storage, spec)
    workplace.display.stage("warm-up")
    workplace.display.say(
        f"{spec.steps} steps, kept for later runs; if stopped it starts over (--warm_up.steps N makes it shorter)"
    )
    workplace.display.total(spec.steps)
    with PrefectArtifacts("warm-up", workplace.display.say, workplace.prefect.serves) as page:

        def report(step: int, loss: float) -> None:
            lock.check()
            workplace.display.step(step, loss=loss)
            page.progress(step, spec.steps, last=step == spec.steps)

        warm_up(workplace.dispatch, spec, uri, report)
    return uri
