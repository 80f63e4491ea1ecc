"""Flow `rlvf-sft`: warm the tiny policy up, once."""

from prefect import flow

from flows.config import SftConfig
from flows.run.artifacts import PrefectArtifacts
from flows.run.failure import name_the_cause
from flows.run.hold import TrainerLost
from flows.run.recovery import with_recovery
from flows.run.workplace import Workplace, open_workplace
from infra.cluster.calls import DispatchStoppedError
from infra.cluster.machine import cores
from infra.cluster.training_lock import TrainingLock
from tasks.calls.warm_up import WarmUp
from tasks.warm_up import bring, is_kept, warm_up, warm_up_uri


def warm_up_spec(config: SftConfig) -> WarmUp:
    """The warm-up that ``config`` asks for."""
    asked = config.warm_up
    threads = config.cluster.threads or cores()
    return WarmUp(asked.steps, asked.batch, asked.optimizer, asked.seed, config.policy, threads)


def kept_warm_up(config: SftConfig, workplace: Workplace) -> str | None:
    """Where this warm-up is kept, None if it has yet to be made. One that is kept in the home is copied to a
    storage elsewhere."""
    spec = warm_up_spec(config)
    uri, at_home = warm_up_uri(workplace.storage, spec), warm_up_uri(workplace.home, spec)
    return uri if is_kept(uri) or bring(at_home, uri) else None


@flow(name="rlvf-sft", on_failure=[name_the_cause])
def sft(config: SftConfig) -> str:
    """Warm the tiny policy up on the grammar's problems and return where it is stored, in Hugging Face layout. A
    warm-up that was made before with the same settings and the same code is used again."""
    with open_workplace(config.cluster, config.placement) as workplace:
        return with_recovery(workplace, config.cluster, lambda now: warmed_up(config, now))


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
    workplace.display.total(spec.steps)
    with PrefectArtifacts("warm-up", workplace.display.say, workplace.prefect.serves) as page:

        def report(step: int, loss: float) -> None:
            lock.check()
            workplace.display.step(step, loss=loss)
            page.progress(step, spec.steps, last=step == spec.steps)

        warm_up(workplace.dispatch, spec, uri, report)
    return uri
