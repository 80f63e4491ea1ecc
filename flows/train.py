"""Flow `rlvf`: reinforcement learning with verifiable reward. The loop below is the algorithm."""

from collections import deque
from dataclasses import dataclass

from prefect import flow
from prefect.futures import PrefectFuture, as_completed
from prefect.runtime import flow_run

from flows.config import TrainConfig
from flows.report.result import TrainResult
from flows.report.summary import outcome
from flows.run.chosen import chosen_run, going_on
from flows.run.diverged import stop_if_diverged
from flows.run.failure import name_the_cause
from flows.run.page import from_prefect
from flows.run.recovery import Progress, with_recovery
from flows.run.training import Training
from flows.run.workplace import Workplace, open_workplace
from flows.sft import first_weights
from flows.start.finetunes import with_made_model
from flows.start.references import with_named_reference
from flows.start.resume import resume_with
from flows.start.runs import new_name, with_secrets
from infra.home import runs_uri
from rl.graph import AUDIT
from rl.records import Learned
from tasks.audit import audit, doubts
from tasks.batch.collection import Collection
from tasks.batch.rollout_batch import RolloutBatch
from tasks.generate import generate
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
        policy = training.begin(first_weights(config, workplace, made=not training.run.under_way))
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
                training.publish(step + 1)
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
            self.tasks = start_tasks(self.training, self.collection)


def collect(training: Training, step: int) -> Collecting:
    """Start the batch of ``step``: generate in leases, verify and score as they come in, audit some, replace groups
    that teach nothing."""
    algorithm, calls = training.algorithm, list(training.graph.scores)
    if training.audits is not None and training.audits.possible(training.workplace.dispatch):
        calls.append(AUDIT)
    collection = Collection(step, training.problems, training.config.batch, calls, every_group=algorithm.every_group)
    return Collecting(training, collection, start_tasks(training, collection))


def start_tasks(training: Training, collection: Collection) -> list[PrefectFuture[None]]:
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
    dispatch, critic = training.workplace.dispatch, training.critic
    if critic is None:
        return update(dispatch, training.trainer, step, batch.batch, batch.figures())
    criticised = train_critic.submit(dispatch, critic.trained, step, batch.batch, critic.kl_coefficient)
    learned = update(dispatch, training.trainer, step, batch.batch, batch.figures())
    return critic.beside(learned, criticised.result())
