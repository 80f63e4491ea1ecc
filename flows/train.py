"""Flow `rlvf`: reinforcement learning with verifiable reward. The loop below is the algorithm."""

from collections import deque
from dataclasses import dataclass, replace

from prefect import flow
from prefect.futures import PrefectFuture, as_completed
from prefect.runtime import flow_run

from flows.config import TrainConfig
from flows.finetune_config import SftConfig
from flows.report.result import TrainResult
from flows.report.summary import outcome
from flows.run.diverged import stop_if_diverged
from flows.run.failure import name_the_cause
from flows.run.models import both
from flows.run.page import from_prefect
from flows.run.recovery import Progress, with_recovery
from flows.run.training import Training
from flows.run.workplace import Workplace, open_workplace
from flows.sft import kept_warm_up, sft
from flows.start.defaults import with_defaults
from flows.start.finetunes import with_made_model
from flows.start.preflight import check_model
from flows.start.references import check_reference, with_named_reference
from flows.start.resume import resume_with
from flows.start.runs import Run, begun_by, new_name, new_run, with_secrets
from flows.start.trust import refuse_odd_files
from infra.home import runs_uri
from infra.runs.checkpoints import require_run, resolve_run, state_uri
from infra.storage import store
from rl.config import TINY
from rl.graph import AUDIT
from rl.records import Learned
from tasks.audit import audit, doubts
from tasks.collection import Collection
from tasks.generate import generate
from tasks.rollout_batch import RolloutBatch
from tasks.score import score
from tasks.train_critic import train_critic
from tasks.update import update
from tasks.verify import verify


def title() -> str:
    """The flow run's name in Prefect: that of the run's folder. Where none was given it has a part of the flow run's
    id, as several may begin in one second; one that Prefect starts again keeps it."""
    given = flow_run.parameters
    named = given.get("resume") or given["config"].run
    if named is None and flow_run.run_count > 0:  # the count is of before this start, as long as it has no name
        named = flow_run.name
    elif named is None:
        named = f"{new_name(given['config'])}-{str(flow_run.id)[:6]}"
    return str(named).rstrip("/").rpartition("/")[2]


@flow(name="rlvf", flow_run_name=title, on_failure=[name_the_cause])
def train(config: TrainConfig, resume: str | None = None) -> TrainResult:
    """Train a policy: a new run, or with ``resume`` (a run's name or URI) the rest of that one, as it was saved but for
    what ``config`` gives. When a trainer is lost with steps that no checkpoint holds, or the scheduler of a joined
    cluster, the run goes on from its newest checkpoint."""
    config = with_made_model(with_secrets(config), runs_uri())
    whole = config = with_named_reference(config, runs_uri())
    if resume is not None:
        saved, _ = resume_with(resume, runs_uri(), config, form=from_prefect())
        whole, resume = saved.config, saved.uri  # `newest` is another run by the time that this one goes on
    progress = Progress()
    with open_workplace(whole.cluster, whole.placement) as workplace:
        return with_recovery(
            workplace, whole.cluster, lambda now: run_training(config, resume, now, progress), progress
        )


def run_training(config: TrainConfig, resume: str | None, workplace: Workplace, progress: Progress) -> TrainResult:
    """The run, from its beginning or its newest checkpoint to its last step."""
    with Training(going_on(progress) or chosen_run(config, resume, workplace), workplace, progress) as training:
        config = training.config
        policy = training.begin(first_weights(training.run, workplace))
        training.evaluate(policy)
        training.started()
        ahead: deque[Collecting] = deque()  # batches on their way, oldest first
        for step in range(policy.step, config.steps):
            # admission: batch k may start once version k - staleness is there
            while len(ahead) <= config.staleness and step + len(ahead) < config.steps:
                ahead.append(collect(training, step + len(ahead)))
            with training.timed("rollouts"):
                batch = ahead.popleft().result()
                training.keep(step, batch)
            with training.timed("update"):
                learned = learn(training, step, batch)
            with training.timed("publish"):
                training.publishing.begin(step + 1)
                if training.criticism is not None:
                    training.criticism.publishing.begin(step + 1)
            with training.timed("log"):
                training.log(batch, learned)
                progress.made(learned.step)
            stop_if_diverged(learned)
            if training.evaluations.due(step + 1):
                with training.timed("evaluate"):
                    training.evaluate(training.publishing.end())
        result = training.finished()
        workplace.prefect.conclude(outcome(training.run, result))
        return result


@dataclass
class Collecting:
    """A batch on its way: one task generates, the others verify, score and audit what comes in."""

    training: Training
    collection: Collection
    tasks: list[PrefectFuture[None]]

    def result(self) -> RolloutBatch:
        """The batch, once it is complete and what audits have found wrong is made again. The first fault of a task is
        raised at once."""
        dispatch = self.training.workplace.dispatch
        while True:
            for each in as_completed(self.tasks):
                each.result()
            if not self.collection.reopen(dispatch.exclusions.is_distrusted, doubts(dispatch, self.training.audits)):
                return self.collection.collected()
            self.tasks = begin(self.training, self.collection)


def collect(training: Training, step: int) -> Collecting:
    """Start the batch of ``step``: generate in leases, verify and score as they come in, audit some, replace groups
    that teach nothing."""
    algorithm, calls = training.algorithm, list(training.graph.scores)
    if training.audits is not None and training.audits.possible(training.workplace.dispatch):
        calls.append(AUDIT)
    collection = Collection(step, training.problems, training.config.batch, calls, every_group=algorithm.every_group)
    return Collecting(training, collection, begin(training, collection))


def begin(training: Training, collection: Collection) -> list[PrefectFuture[None]]:
    """Start the tasks of a batch."""
    dispatch, publishing = training.workplace.dispatch, training.publishing
    made = training.generator, publishing.newest, training.admission, publishing.mend
    tasks = [
        generate.submit(dispatch, collection, *made),
        verify.submit(dispatch, collection, training.workplace.failures.saw),
        *(score.submit(dispatch, collection, scores) for scores in training.scores),
    ]
    if training.audits is not None and collection.makes(AUDIT):
        tasks.append(audit.submit(dispatch, collection, training.audits))
    return tasks


def learn(training: Training, step: int, batch: RolloutBatch) -> Learned:
    """The update of ``step``, and beside it the critic's where there is one."""
    dispatch, criticism = training.workplace.dispatch, training.criticism
    if criticism is None:
        return update(dispatch, training.trainer, step, batch.batch, batch.figures())
    criticised = train_critic.submit(dispatch, criticism.critic, step, batch.batch, criticism.kl_coefficient)
    learned = update(dispatch, training.trainer, step, batch.batch, batch.figures())
    criticism.kl_coefficient = learned.kl_coefficient
    return both(learned, criticised.result(), criticism.scores.age(step))


def first_weights(run: Run, workplace: Workplace) -> str:
    """The source of version 0: the model named, or the tiny policy, warmed up now if it was not before; "" where a
    later version is saved, as the run goes on from that or not at all."""
    config = run.config
    if config.policy.model != TINY:
        return config.policy.model
    warm = SftConfig(warm_up=config.warm_up, policy=config.policy, cluster=config.cluster, placement=config.placement)
    if run.resumed and any(store.versions(state_uri(run.uri))):  # but where a frozen model may have to be stored anew
        return (kept_warm_up(warm, workplace) or "") if config.policy.lora.rank else ""
    return kept_warm_up(warm, workplace) or sft(warm)


def going_on(progress: Progress) -> Run | None:
    """The run that `with_recovery` begins again, as this process has begun it: nobody is asked whether it is trusted,
    and what its files say by now changes nothing."""
    if progress.opened is None:
        return None
    require_run(progress.opened.run.uri)
    return progress.opened.run


def chosen_run(config: TrainConfig, resume: str | None, workplace: Workplace) -> Run:
    """The run to train. One that this flow run has begun before, as Prefect starts it again, is resumed."""
    if resume is None and (resume := own_run_name(config, workplace)) is not None:
        config, _ = with_defaults(config)  # as they were chosen when it began
    if resume is not None:
        run, kept = resume_with(resume, workplace.runs, config, form=from_prefect())
        for line in kept:
            workplace.display.say(line)
        return run
    for note in (check_model(config.policy.model, workplace.runs), check_reference(config, workplace.runs)):
        if note:
            workplace.display.say(note)
    config, chosen = with_defaults(config)
    for line in chosen:
        workplace.display.say(line)
    run = new_run(config.model_copy(update={"run": name_of(config)}), workplace.runs, "resume: ")
    refuse_odd_files(run.uri)
    return replace(run, flow_run=flow_run.id)


def own_run_name(config: TrainConfig, workplace: Workplace) -> str | None:
    """The name of the run that this flow run has begun before; None if it has begun none. A run of that name that
    another flow run has begun is not its own."""
    named = name_of(config)
    return named if begun_by(resolve_run(named, workplace.runs), flow_run.id) else None


def name_of(config: TrainConfig) -> str:
    return config.run or str(flow_run.name)
