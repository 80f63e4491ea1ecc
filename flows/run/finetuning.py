"""Training on a fixed set of examples: demonstrations, or pairs of completions."""

import io
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from prefect.runtime import flow_run

from flows.finetune_config import DpoConfig, FinetuneConfig, RewardModelConfig
from flows.report.html import REPORT
from flows.report.result import FinetuneResult
from flows.report.summary import finetune_outcome
from flows.run.bookkeeping import Bookkeeping
from flows.run.hold import Entered, Hold
from flows.run.recovery import Progress
from flows.run.step_time import weights_read
from flows.run.tracker import tracker_of
from flows.run.workplace import Workplace
from flows.start.finetunes import Finetune
from flows.start.lineage import note_on_few, note_on_lineage, trained_before
from flows.start.runs import local_folder
from flows.start.trust import remember
from infra.runs.metric_log import read_metrics
from infra.runs.record import METRICS, RESULT, begin_record, bring_record
from infra.storage import place
from infra.storage.retry_policy import RetryPolicy
from rl.problems.examples import Example
from rl.records import Learned
from tasks.calls.tuner import Tuner
from tasks.fit import check_examples, measure, reference_scores
from tasks.sets.example_set import ExampleSet, conversation, open_examples

REFERENCE = "reference.npy"  # the examples' scores under the start model, NaN of those that are not computed yet
KEEP_SECONDS = 30.0  # of computing them that a kill may cost


class Finetuning(Entered):
    """The state of one run in this process; a context manager that ends its bookkeeping whatever happens."""

    def __init__(self, run: Finetune[FinetuneConfig], source: str, workplace: Workplace, progress: Progress) -> None:
        """``source``: the weights that it starts from."""
        config = run.config
        examples = open_examples(config.problems, config.held_out, plain=isinstance(config, RewardModelConfig))
        if run.resumed:
            run.refuse_other_examples(examples)
        self.run = run.with_steps(examples)
        self.examples = examples
        self.tuner: Tuner  # from entering on
        self._source, self._workplace, self._progress = source, workplace, progress
        self._folder = local_folder(run.uri, workplace.home)
        self._reference: StartScores | None = None  # where the objective compares with the start model
        self._figures: dict[int, dict[str, float]] = {}  # of held-out examples, by step
        notes = list(self.run.notes)
        if config.held_out is None and not examples.held_out:
            notes.append(note_on_few(examples.name, len(set(map(conversation, examples.train)))))
        if not run.resumed:  # what it began from may be gone by now
            model = config.policy.model
            notes.append(note_on_lineage(model, examples.held_out, trained_before(model)))
        for note in filter(None, notes):
            workplace.display.say(note)

    def __enter__(self) -> Self:
        run, config, workplace, examples = self.run, self.run.config, self._workplace, self.examples
        with ExitStack() as stack:
            self._hold = hold = stack.enter_context(Hold(run, workplace))
            (bring_record if run.resumed else begin_record)(run.uri, self._folder)
            self.tuner = Tuner(
                run_uri=run.uri,
                source=self._source,
                policy=config.policy,
                optimizer=config.optimizer,
                checkpoint=config.checkpoint,
                steps=run.steps,
                fence=hold.fence,
                seed=config.seed,
                method=config.method,
                beta=config.beta if isinstance(config, DpoConfig) else 0.0,
                max_tokens=config.max_tokens,
            )
            workplace.display.stage("load the policy")
            if not run.resumed and (  # before the run exists
                cut := check_examples(workplace.dispatch, self.tuner, (*examples.train, *examples.held_out))
            ):
                limit = f"max_tokens {config.max_tokens}, or where the model reaches no more"
                workplace.display.say(f"{cut} completions are cut at {limit}")
            params = {"method": config.method, **config.model_dump(mode="json")}
            self._tracker = tracker = stack.enter_context(tracker_of(run, workplace, examples.name, params, hold.check))
            run.save(examples)
            remember(run)
            sizes = {examples.name: len(examples.held_out)} if examples.held_out else {}
            self._books = stack.enter_context(Bookkeeping(run, workplace, self._folder, tracker, hold.check, sizes))
            stack.callback(hold.end)
            self._stack = stack.pop_all()
        return self

    def begin(self) -> int:
        """Load the run's newest checkpoint on the trainer, or version 0; returns the step that it is of."""
        run, workplace = self.run, self._workplace
        if isinstance(run.config, DpoConfig):
            self._reference = StartScores(run, self.examples, self.tuner, workplace, self._hold.check)
        workplace.display.stage("load the policy")
        begun = workplace.dispatch.run("train", self.tuner.begin)
        for warning in begun.warnings:
            workplace.display.say(f"warning: {warning}")
        self._books.go_back(begun.step)
        if run.resumed:
            workplace.display.say(f"going on from step {begun.step} of {run.steps}")
        if begun.learned is not None:  # it may have been killed between the checkpoint and the log
            self._tracker.log(begun.step, begun.learned.metrics)
        self._figures = kept_figures(self._folder)
        if begun.step in (0, run.steps):
            self.evaluate(begun.step)
        workplace.display.stage(run.config.method)
        workplace.display.total(run.steps, begun.step)
        return begun.step

    def examples_of(self, step: int) -> tuple[tuple[Example, ...], NDArray[np.float64] | None]:
        """Those that ``step`` learns from, and their scores under the start model where these are needed."""
        self._began = time.perf_counter()
        self._hold.check()
        rows = self.examples.rows(self.run.config.seed, step, self.run.config.batch)
        known = None if self._reference is None else self._reference.of(rows)
        return tuple(self.examples.train[row] for row in rows), known

    def log(self, learned: Learned) -> None:
        """Log a finished step."""
        seconds, display = time.perf_counter() - self._began, self._workplace.display
        pace = {"perf/step_seconds": seconds, "perf/examples_per_second": learned.groups / seconds}
        read = weights_read(self._books.step(learned.step))
        self._tracker.log(learned.step, {**learned.metrics, **pace, **read})
        self._books.logged()
        if learned.said:
            display.say(f"step {learned.step}: {learned.said}")
        shown = {name.partition("/")[2]: of for name, of in learned.metrics.items()}
        display.step(learned.step, note="", **{name: of for name, of in shown.items() if name in ("loss", "accuracy")})

    def is_due(self, step: int) -> bool:
        """Whether version ``step`` is measured on what is held out."""
        every = self.run.config.evaluate_every
        return step == self.run.steps or (every > 0 and step % every == 0)

    def evaluate(self, step: int) -> None:
        """Measure version ``step`` on what is held out."""
        if self.examples.held_out:
            known = None if self._reference is None else self._reference.held_out
            found = measure(self._workplace.dispatch, self.tuner, step, self.examples.held_out, known)
            self._figures[step] = found
            self._tracker.log(step, found)

    def finished(self) -> FinetuneResult:
        """The result, when all steps are done; it is kept beside the run as ``result.json``."""
        run, workplace = self.run, self._workplace
        self._hold.check()
        result = FinetuneResult(
            run=run.uri,
            policy=workplace.dispatch.run("train", self.tuner.export, run.steps),
            steps=run.steps,
            held_out=len(self.examples.held_out),
            before=self._figures.get(0, {}),
            after=self._figures.get(run.steps, {}),
            seconds=time.perf_counter() - self._progress.began,
            report=str(self._folder / REPORT) if run.config.tracking.report else None,
            page=self._tracker.page(),
        )
        figures = asdict(result)
        text = json.dumps({**figures, "flow_run": str(flow_run.id or "")}, indent=2)
        place.write_text(place.join(run.uri, RESULT), text + "\n")
        workplace.prefect.conclude([finetune_outcome(run.config.method, run.name, figures)])
        return result


def kept_figures(folder: Path) -> dict[int, dict[str, float]]:
    """What was logged of held-out examples, by step."""
    return {
        line.step: {name: of for name, of in line.metrics.items() if "/held_out_" in name}
        for line in read_metrics(folder / METRICS)
        if any("/held_out_" in name for name in line.metrics)
    }


class StartScores:
    """The scores of examples under the start model, each computed once and kept with the run."""

    def __init__(
        self,
        run: Finetune[FinetuneConfig],
        examples: ExampleSet,
        tuner: Tuner,
        workplace: Workplace,
        check: Callable[[], None],
    ) -> None:
        """Computes what the run needs and does not have, and keeps it on the way there. ``check`` raises once the run
        is another's: nothing is written then."""
        config, count = run.config, len(examples.train)
        needed = {row for step in range(run.steps) for row in examples.rows(config.seed, step, config.batch)}
        all_of = (*examples.train, *examples.held_out)
        wanted = sorted(needed) + list(range(count, len(all_of)))
        uri = place.join(run.uri, REFERENCE)
        kept = place.read(uri) if run.resumed else None
        found = scores_in(kept, len(all_of)) if kept is not None else None
        if kept is not None and found is None:
            workplace.display.say(f"{uri} is damaged: the scores under the start model are computed again")
        if found is None:
            found = np.full((len(all_of), 2), np.nan)
        self._train, self.held_out = found[:count], found[count:]
        lacking = [row for row in wanted if not np.isfinite(found[row]).all()]
        if not lacking:
            return
        written = time.monotonic()

        def keep(part: slice, scores: NDArray[np.float64]) -> None:
            nonlocal written
            found[lacking[part]] = scores
            if part.stop >= len(lacking) or time.monotonic() - written > KEEP_SECONDS:
                check()
                RetryPolicy(run.patience, check=check)(place.write_bytes, uri, bytes_of(found))
                written = time.monotonic()

        workplace.display.stage("reference")
        reference_scores(workplace.dispatch, tuner, [all_of[row] for row in lacking], workplace.display, keep)

    def of(self, rows: list[int]) -> NDArray[np.float64]:
        """[P, 2] of these examples to train on."""
        return self._train[rows]


def bytes_of(scores: NDArray[np.float64]) -> bytes:
    """The content of a .npy file."""
    content = io.BytesIO()
    np.save(content, scores, allow_pickle=False)
    return content.getvalue()


def scores_in(content: bytes, count: int) -> NDArray[np.float64] | None:
    """[N, 2] as `bytes_of` wrote them, of ``count`` examples; None where that is not what is there: the file may be cut
    off, or anybody's, and its header says how much memory is taken."""
    blank = np.full((count, 2), np.nan)
    whole = bytes_of(blank)
    header = whole[: len(whole) - blank.nbytes]
    if len(content) != len(whole) or not content.startswith(header):
        return None
    return np.frombuffer(content, blank.dtype, offset=len(header)).reshape(blank.shape).copy()
