"""A training run while it goes on: what its steps share, what it logs, and what it says at the end."""

import json
import shlex
import time
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import asdict, replace
from types import TracebackType
from typing import Self

from prefect.runtime import flow_run

from flows.report.html import PICTURE, REPORT
from flows.report.result import TrainResult, held_out_figures, kept_pace, not_judged
from flows.report.summary import run_name
from flows.run.advice import Advice
from flows.run.bookkeeping import Bookkeeping
from flows.run.evaluations import Evaluations
from flows.run.hold import Hold, Lost
from flows.run.limit import RunningLimit
from flows.run.models import CriticState, begin_together, critic_state, critic_trainer, policy_trainer
from flows.run.opened import Opened
from flows.run.page import CancelledOnPage, watch_run_state
from flows.run.plans import problems_to_check, what_judges
from flows.run.publishing import Publishing
from flows.run.recovery import Progress
from flows.run.scores import audits_of, check_other_model, scores_of
from flows.run.step_time import StepTime, weights_read
from flows.run.tracker import tracker_of
from flows.run.workplace import Workplace
from flows.start.defaults import notes_on_adapters, notes_on_staleness, notes_on_tiny
from flows.start.edited import edited, save_sources
from flows.start.lineage import notes_on_held_out, notes_on_prompts, save_problems
from flows.start.runs import Run, local_folder
from flows.start.trust import remember
from infra.dispatch.shares import Sizes
from infra.interrupts import answered_by
from infra.runs.checkpoints import best_version
from infra.runs.metric_log import read_metrics
from infra.runs.record import METRICS, RESULT, begin_record, bring_record
from infra.runs.tracking import Tracker
from infra.storage import place
from infra.weights.version import PolicyVersion
from rl.config import TINY
from rl.records import Learned
from tasks.batch.rollout_batch import RolloutBatch, few_reasons
from tasks.calls.generator import Generator
from tasks.calls.inflight import Inflight
from tasks.calls.start import check_policy
from tasks.calls.trainer import Trainer
from tasks.generate import Admission, check_servers
from tasks.turns import check_environment
from tasks.verify import check_verifiers


class Training:
    """The state of one run in this process; a context manager that ends its bookkeeping whatever happens."""

    def __init__(self, run: Run, workplace: Workplace, progress: Progress) -> None:
        self.run = run
        self.workplace = workplace
        self._progress = progress
        self.config = config = run.config
        self._opened = progress.opened or Opened.of(run)
        self.algorithm = self._opened.algorithm
        workplace.dispatch.took.patience = config.lease.patience
        self.graph = self._opened.graph
        workplace.dispatch.require(call.name for call in self.graph.calls)
        self.problems = self._opened.problems
        public = config.policy.model if config.sync.base == "public" else None
        sampled = config.policy, config.sampling, config.batch.samples, config.seed
        self.generator = Generator(*sampled, patience=config.sync.patience, public=public)
        if (environment := self.problems.environment) is not None:
            interface = check_environment(workplace.dispatch, environment, self.problems.some_played())
            self.generator = replace(self.generator, interface=interface)
        self.evaluations = Evaluations(config, self._opened.plans, self.generator, workplace, run.uri)
        judging = check_verifiers(workplace.dispatch, self._opened.verifiers, self.problems.longest())
        judges = what_judges(self.problems, self.evaluations.plans)
        notes = [*notes_on_prompts(config.policy.model, self.problems), judges, *judging]
        notes += notes_on_held_out(config.held_out, self.problems)
        notes += notes_on_tiny(config.policy.model, self.problems.some())
        notes += notes_on_staleness(config.staleness, self.algorithm, resumed=run.resumed)
        for note in filter(None, notes):
            workplace.display.say(note)
        self._generators: Collection[str] = ()  # that were there at the last log
        self.publishing: Publishing  # set by begin
        self.trainer: Trainer  # set by begin
        self.critic: CriticState | None = None  # where the algorithm has a critic
        self.admission: Admission  # set by begin
        self.tracker: Tracker
        self._logged_at = time.perf_counter()
        self._time = StepTime()
        self.timed = self._time.timed
        self._advice = Advice(config.sampling.limit, turns=self.problems.environment is not None)
        self._changed: list[str] = []  # what a resumed run is given otherwise than before

    def _check_policy(self) -> None:
        """Refuse a model that cannot be trained on these problems, before a new run is written."""
        check_servers(self.workplace.dispatch, self.config.policy)
        if self.run.resumed:
            return
        if self.config.policy.model != TINY:
            self.workplace.display.stage("check the policy")
        problems, limit = problems_to_check(self.problems, self.evaluations.plans), self.config.sampling.limit
        asked = self.config.policy, self.config.optimizer, problems, limit, self._hold.fence, self.generator.interface
        for note in self.workplace.dispatch.run("train", check_policy, *asked):
            self.workplace.display.say(note)
        check_other_model(self.workplace, self.config, self.run.uri, self._hold.fence)

    def __enter__(self) -> Self:
        self._folder = local_folder(self.run.uri, self.workplace.home)
        with ExitStack() as stack:
            self._cancelled = stack.enter_context(
                watch_run_state(self.workplace.dispatch, self.workplace.display, self.workplace.prefect.serves)
            )
            self._hold = stack.enter_context(Hold(self.run, self.workplace))
            (bring_record if self.run.resumed else begin_record)(self.run.uri, self._folder)
            self._signals = stack.enter_context(answered_by(self._stop))
            self._check_policy()  # with the training lock: the trainer may have been another run's until now
            known = self.problems.name, self.config.model_dump(mode="json")
            self.tracker = stack.enter_context(tracker_of(self.run, self.workplace, *known, self._hold.check))
            if not self.run.resumed:
                save_problems(self.run.uri, self.problems)  # before it exists: no run of this version is without
            else:
                self._changed = [*self.run.changes(), *edited(self.run.uri, self.problems, self._opened.algorithm)]
            save_sources(self.run.uri, self.problems, self._opened.algorithm)
            self.run.save_config()
            if self._progress.opened is None:
                remember(self.run, self._opened.programs)
                self._progress.opened = self._opened.on_storage()
            sizes = self.evaluations.held_out_sizes
            books = Bookkeeping(self.run, self.workplace, self._folder, self.tracker, self._hold.check, sizes)
            self._books = stack.enter_context(books)
            cut, machines = self.config.lease.seconds > 0, self.workplace.machines
            self._limit = RunningLimit(self.graph, self.config.staleness, machines, cut=cut)
            self._stack = stack.pop_all()
        return self

    def _stop(self) -> None:
        self.workplace.dispatch.stop()  # first: whoever reads what is said may stand still
        self.workplace.display.say("ending; what is under way is given up, and what was logged brought to MLflow")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.workplace.dispatch.stop()  # the tasks that generate ahead would keep the flow from ending
        self._hold.end()
        try:
            self._hold.check()
        except Lost as lost:  # and whatever the work raised is because of it
            kind, error = type(lost), lost
        finally:  # also where a second signal has broken off a question to a scheduler that hangs
            # who takes a run over marks its flow run as crashed, which looks like a cancellation from here
            stopped = bool(self._signals) or (self._cancelled.is_set() and not isinstance(error, Lost))
            if stopped:  # what the work raised because of it is not why the run ends
                kind, error = KeyboardInterrupt, KeyboardInterrupt()
            self._stack.__exit__(kind, error, trace)  # a signal takes effect here
        if isinstance(error, Lost):
            raise error
        if stopped:
            raise CancelledOnPage("cancelled on Prefect's page")

    # -- the beginning

    def begin(self, source: str) -> PolicyVersion:
        """Load the run's newest checkpoint on the trainer, or version 0 from ``source``, and publish it."""
        config, run, fence = self.config, self.run.uri, self._hold.fence
        self.trainer = policy_trainer(config, self.algorithm, run_uri=run, source=source, fence=fence)
        critic = critic_trainer(self.trainer, config)
        self.workplace.display.stage("load the policy")
        begun = begin_together(self.workplace.dispatch, self.trainer, critic)
        warnings = (f"warning: {warning}" for warning in begun.warnings)
        for note in (*warnings, *notes_on_adapters(config.policy.lora.rank, begun.trained, begun.parameters)):
            self.workplace.display.say(note)
        self._books.note_parameters(begun.trained, begun.parameters, begun.dtype)
        self._books.go_back(begun.step)
        if self.run.resumed:
            more = f"; more steps: rlvf train --resume {shlex.quote(run_name(self.run))} --steps N"
            end = more if begun.step == config.steps else ""
            self.workplace.display.say(f"going on from step {begun.step} of {config.steps}{end}")
            for line in self._changed:
                self.workplace.display.say(f"other than before: {line}")
            self._books.note_changes(begun.step, self._changed)
        if begun.learned is not None:  # it may have been killed between the checkpoint and the log
            self.tracker.log(begun.step, {**begun.figures, **begun.learned.metrics})
        sizes = Sizes(config.batch.lease, config.lease.seconds) if config.staleness and config.lease.seconds else None
        self.admission = Admission(config.staleness, begun.vocabulary, sizes)
        if config.inflight.in_use(config.staleness, config.policy.engine):
            self.generator = replace(self.generator, inflight=Inflight(fence, config.inflight.kv_versions))
        self.generator = replace(
            self.generator, slice_seconds=config.batch.slices(config.staleness, config.policy.engine)
        )
        self.publishing = Publishing(self.workplace, self.trainer, self.tracker, begun.step)
        self.critic = critic_state(self.workplace, config, critic, self.tracker, begun)
        by = self.generator, self.publishing, self.admission, self.problems
        values = None if self.critic is None else self.critic.scores
        self.scores = scores_of(config, self.trainer, self.workplace, *by, values)
        self.audits = audits_of(config, self.generator, self.publishing)
        self._advice.begin(logged := read_metrics(self._folder / METRICS))
        self.evaluations.begin(
            logged,
            self.tracker,
            lambda step, name, meta: self.workplace.dispatch.run("train", self.trainer.export, step, name, meta),
            self.publishing.mend,
        )
        return self.publishing.policy

    def evaluate(self, policy: PolicyVersion) -> None:
        """Evaluate this version on what is due; that counts towards no step's time."""
        began = time.perf_counter()
        if policy.step in (0, self.config.steps):
            self.workplace.display.stage("evaluate")
        self.evaluations.make(policy)
        if policy.step < self.config.steps:  # after the last step there is none to be longer for it
            self._time.leave_out(time.perf_counter() - began)

    def started(self) -> None:
        """The steps begin now."""
        self.workplace.display.stage("train")
        self.workplace.display.total(self.config.steps, self.publishing.policy.step)
        self._logged_at = time.perf_counter()
        self._time.begin()

    # -- each step

    def keep(self, step: int, batch: RolloutBatch) -> None:
        """Write the completions of ``step`` down for people, in the background."""
        self._hold.check()
        self._books.keep(step, batch)

    def publish(self, step: int) -> None:
        """Begin to publish version ``step`` of each model that is trained."""
        self.publishing.begin(step)
        if self.critic is not None:
            self.critic.publishing.begin(step)

    def log(self, batch: RolloutBatch, learned: Learned) -> None:
        """Log a finished step."""
        now, step = time.perf_counter(), self._time.end()
        pace, spans = batch.completions / step.seconds, self._books.step(learned.step)
        self._generators = self.workplace.generators(self._generators)
        figures = {
            **few_reasons(batch.figures(), self.tracker.names()),
            **learned.metrics,
            **step.figures(spans),
            "perf/rollouts_per_second": pace,
            "perf/generated_tokens_per_second": batch.tokens / step.seconds,
            "perf/generator_busy": self._time.sampling(spans, step.seconds, self._generators),
            **weights_read(spans),
        }
        self.tracker.log(learned.step, figures)
        self._books.logged()
        if self._limit.add(spans, figures):
            self._books.show_limit(self._limit.words)
        for line in self._advice.after(figures):
            self.workplace.display.say(line)
        if self.tracker.samples_due(learned.step):
            self.tracker.log_samples(learned.step, batch.samples)
        self._progress.count(batch.completions, now - self._logged_at, step.spent)  # with evaluations before the step
        self._logged_at = now
        if learned.refused or not learned.applied:  # the critic's update may be refused alone
            for line in self._advice.without_update(learned.step, learned.refused, batch.groups_with_signal):
                self.workplace.display.say(line)
        if learned.said:
            self.workplace.display.say(f"step {learned.step}: {learned.said}")
        note = f"learned from {learned.groups} of {batch.groups_generated} groups{not_judged(batch.error_rate)}"
        rates = {} if batch.pass_rate == batch.reward else {"pass_rate": batch.pass_rate}
        self.workplace.display.step(learned.step, reward=batch.reward, **rates, rollouts_per_second=pace, note=note)

    # -- the end

    def finished(self) -> TrainResult:
        """The result, when all steps are done; it is kept beside the run as ``result.json``."""
        before, after = self.evaluations.held_out(0), self.evaluations.held_out(self.publishing.end().step)
        if self.critic is not None:
            self.critic.publishing.end()
            self.workplace.dispatch.run("train_critic", self.critic.trained.keep, self.publishing.policy.step)
        pace, stages = self._progress.pace() if self._progress.completions else kept_pace(self._folder / RESULT)
        result = TrainResult(
            run=self.run.uri,
            steps=self.publishing.policy.step,
            **held_out_figures(before, after),
            best=best_version(self.run.uri, self.run.patience) if self.config.checkpoint.keep_best else None,
            rollouts_per_second=pace,
            seconds=time.perf_counter() - self._progress.began,
            stages=stages,
            lost=dict(self.workplace.dispatch.lost),
            limit=self._limit.words(),
            picture=str(self._folder / PICTURE),
            report=str(self._folder / REPORT) if self.config.tracking.report else None,
            checkpoint=self.workplace.dispatch.run("train", self.trainer.export, self.publishing.policy.step),
            page=self.tracker.page(),
            flow_run_id=flow_run.id,
        )
        self._hold.check()
        place.write_text(str(self._folder / RESULT), json.dumps(asdict(result), indent=2) + "\n")
        return result
