"""Training on a fixed set of examples: demonstrations, or pairs of completions."""

import io
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from prefect.runtime import flow_run

from flows.finetune_config import DpoConfig, FinetuneConfig, RewardModelConfig
from flows.report.html import REPORT
from flows.report.summary import finetune_outcome
from flows.run.bookkeeping import Bookkeeping
from flows.run.diverged import stop_if_diverged
from flows.run.hold import Hold
from flows.run.recovery import Progress
from flows.run.step_time import weights_read
from flows.run.workplace import Workplace
from flows.start.finetunes import Finetune
from flows.start.runs import local_folder
from flows.start.tracked import mlflow_owner, mlflow_run, save_mlflow_run
from flows.start.trust import remember
from infra.runs.metric_log import read_metrics
from infra.runs.mlflow_run import Page
from infra.runs.record import METRICS, RESULT, begin_record, bring_record
from infra.runs.tracking import Tracker
from infra.storage import place
from infra.storage.retry_policy import RetryPolicy
from tasks.calls.tuner import Tuner
from tasks.example_set import ExampleSet, open_examples
from tasks.fit import check_examples, fit, measure, reference_scores

REFERENCE = "reference.npy"  # the examples' scores under the start model, NaN of those that are not computed yet
KEEP_SECONDS = 30.0  # of computing them that a kill may cost


@dataclass(frozen=True)
class FinetuneResult:
    """How a run ended."""

    run: str  # its URI
    policy: str  # the model, in Hugging Face layout
    steps: int
    held_out: int  # examples that were kept out of training, of which the figures are
    before: dict[str, float]  # at version 0; empty where nothing is held out
    after: dict[str, float]
    seconds: float  # of this session
    report: str | None  # None where tracking.report is false
    page: Page


def finetune(run: Finetune[FinetuneConfig], source: str, workplace: Workplace, progress: Progress) -> FinetuneResult:
    """The run, from its beginning or its newest checkpoint to its last step. ``source``: the weights that it starts
    from."""
    config, say = run.config, workplace.display.say
    examples = open_examples(config.problems, config.held_out, plain=isinstance(config, RewardModelConfig))
    if run.resumed:
        run.refuse_other_examples(examples)
    run = run.with_steps(examples)
    for note in run.notes:
        say(note)
    folder = local_folder(run.uri, workplace.home)
    with ExitStack() as stack:
        hold = stack.enter_context(Hold(run, workplace))
        (bring_record if run.resumed else begin_record)(run.uri, folder)
        tuner = Tuner.of(
            run.uri,
            source,
            config.policy,
            config.optimizer,
            config.checkpoint,
            run.steps,
            hold.fence,
            config.seed,
            config.method,
            config.max_tokens,
            config.beta if isinstance(config, DpoConfig) else 0.0,
        )
        workplace.display.stage("load the policy")
        if not run.resumed and (  # before the run exists
            cut := check_examples(workplace.dispatch, tuner, (*examples.train, *examples.held_out))
        ):
            say(f"{cut} completions are cut at max_tokens {config.max_tokens}, or where the model reaches no more")
        tracker = stack.enter_context(
            Tracker(
                config.tracking,
                home=workplace.home,
                experiment=examples.name,
                run_name=run.name,
                run_id=mlflow_run(run.uri),
                owner=mlflow_owner(run.uri),
                params={"method": config.method, **config.model_dump(mode="json")},
                local=folder / METRICS,
                check=hold.check,
            )
        )
        save_mlflow_run(run.uri, tracker.run_id)
        run.save(examples)
        remember(run)
        sizes = {examples.name: len(examples.held_out)} if examples.held_out else {}
        books = stack.enter_context(Bookkeeping(run, workplace, folder, tracker, hold.check, sizes))
        stack.callback(hold.end)
        reference = Reference(run, examples, tuner, workplace, hold.check) if isinstance(config, DpoConfig) else None
        workplace.display.stage("load the policy")
        begun = workplace.dispatch.run("train", tuner.begin)
        for warning in begun.warnings:
            say(f"warning: {warning}")
        books.go_back(begun.step)
        if run.resumed:
            say(f"going on from step {begun.step} of {run.steps}")
        if begun.learned is not None:  # it may have been killed between the checkpoint and the log
            tracker.log(begun.step, begun.learned.metrics)
        found = kept_figures(folder)

        def evaluate(step: int) -> None:
            if examples.held_out:
                known = reference.held_out if reference is not None else None
                found[step] = measure(workplace.dispatch, tuner, step, examples.held_out, known)
                tracker.log(step, found[step])

        if begun.step in (0, run.steps):
            evaluate(begun.step)
        workplace.display.stage(config.method)
        workplace.display.total(run.steps, begun.step)
        for step in range(begun.step, run.steps):
            began = time.perf_counter()
            hold.check()
            rows = examples.rows(config.seed, step, config.batch)
            known = None if reference is None else reference.of(rows)
            learned = fit(workplace.dispatch, tuner, step, tuple(examples.train[row] for row in rows), known)
            seconds = time.perf_counter() - began
            pace = {"perf/step_seconds": seconds, "perf/examples_per_second": len(rows) / seconds}
            tracker.log(learned.step, {**learned.metrics, **pace, **weights_read(books.step(learned.step))})
            books.logged()
            progress.made(learned.step)
            if learned.said:
                say(f"step {learned.step}: {learned.said}")
            stop_if_diverged(learned)
            shown = {name.partition("/")[2]: of for name, of in learned.metrics.items()}
            told = {name: of for name, of in shown.items() if name in ("loss", "accuracy")}
            workplace.display.step(learned.step, note="", **told)
            if learned.step == run.steps or (config.evaluate_every and learned.step % config.evaluate_every == 0):
                evaluate(learned.step)
        hold.check()
        result = FinetuneResult(
            run=run.uri,
            policy=workplace.dispatch.run("train", tuner.export, run.steps),
            steps=run.steps,
            held_out=len(examples.held_out),
            before=found.get(0, {}),
            after=found.get(run.steps, {}),
            seconds=time.perf_counter() - progress.began,
            report=str(folder / REPORT) if config.tracking.report else None,
            page=tracker.page(),
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


class Reference:
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
