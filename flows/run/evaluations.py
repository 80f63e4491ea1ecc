"""The evaluations of a training run while it goes on, and which version was the best."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flows.config import TrainConfig
from flows.report.result import not_judged, problem_count
from flows.run.plans import EvaluationPlan
from flows.run.workplace import Workplace
from infra.runs.checkpoints import BEST, best_version
from infra.runs.metric_log import MetricLine
from infra.runs.tracking import Tracker
from infra.weights.version import PolicyVersion
from tasks.calls.generator import Generator
from tasks.evaluate import Evaluation, evaluate
from tasks.mending import Mend


class Evaluations:
    """The evaluations of one run, each made once for a version that needs it, however often the run is resumed."""

    def __init__(
        self,
        config: TrainConfig,
        plans: Sequence[EvaluationPlan],
        generator: Generator,
        workplace: Workplace,
        run_uri: str,
    ) -> None:
        self.plans = plans
        self._config, self._generator, self._workplace, self._run_uri = config, generator, workplace, run_uri
        self._made: dict[tuple[str, int], Evaluation] = {}
        self._tracker: Tracker
        self._export: Callable[[int, str, dict[str, Any]], str]  # of a version, under that name

    def begin(
        self,
        logged: Iterable[MetricLine],
        tracker: Tracker,
        export: Callable[[int, str, dict[str, Any]], str],
        mend: Mend,
    ) -> None:
        """Take over what earlier sessions of the run have made, where it was of the same problems, verifiers, samples
        and length: these may change when a run is resumed."""
        self._tracker, self._export, self._mend = tracker, export, mend
        for note in filter(None, (plan.note for plan in self.plans)):
            self._workplace.display.say(note)
        others, lines = set(), tuple(logged)
        self.plans = [plan.continuing(lines) for plan in self.plans]
        for line in lines:
            for plan in self.plans:
                if plan.metric("pass_at_1") not in line.metrics:
                    continue
                if line.plan == plan.digest:
                    self._made[plan.name, line.step] = _logged(plan, line)
                else:
                    others.add(plan.label)
        for name in sorted(others):
            self._workplace.display.say(
                f"{name}: earlier figures are of other problems or prompts, another verifier, sampling.max_tokens or "
                "number of samples, or do not say of which: nothing is compared with them"
            )
        best = best_version(self._run_uri, self._config.sync.patience)
        if self._config.checkpoint.keep_best and best is not None and best.plan != self.plans[0].digest:
            self._workplace.display.say(
                f"{BEST}: v{best.step} was chosen by another evaluation; the next one of {self.plans[0].label} chooses "
                "anew"
            )

    def due(self, step: int) -> list[EvaluationPlan]:
        """The plans that are still to be evaluated at this version."""
        last = self._config.steps
        return [plan for plan in self.plans if plan.is_due(step, last) and (plan.name, step) not in self._made]

    def make(self, policy: PolicyVersion) -> None:
        """Evaluate this version on what is due, keep it if it is the best so far, and log it."""
        for plan in self.due(policy.step):
            spec = replace(self._generator, samples=plan.samples)
            workplace = self._workplace
            batch = self._config.batch
            made = evaluate(workplace.dispatch, spec, policy, plan.problems, self._mend, workplace.failures.saw, batch)
            if self._config.checkpoint.keep_best and plan is self.plans[0]:
                self._keep_if_best(plan, made)
            self._made[plan.name, policy.step] = made
            self._log(plan, made)

    def held_out(self, step: int) -> Evaluation | None:
        """The evaluation of this version on the problems kept out of training, if it was made."""
        return self._made.get(("", step))

    @property
    def held_out_sizes(self) -> Mapping[str, int]:
        """How many problems of each set are kept out of training and evaluated on."""
        return next((plan.sizes for plan in self.plans if plan.name == ""), {})

    def _keep_if_best(self, plan: EvaluationPlan, made: Evaluation) -> None:
        """Before it is logged, so that what is logged as the best exists."""
        best = best_version(self._run_uri, self._config.sync.patience)
        beaten = best is None or best.plan != plan.digest or made.reward_sampled > best.reward
        if math.isfinite(made.reward_sampled) and beaten:
            self._export(made.step, BEST, {"step": made.step, "reward": made.reward_sampled, "plan": plan.digest})

    def _log(self, plan: EvaluationPlan, made: Evaluation) -> None:
        figures = {plan.metric(name): value for name, value in made.figures().items()}
        for name, by in made.sets.items():
            figures |= {f"eval/{name}/{what}": value for what, value in by.items()}
        self._tracker.log(made.step, figures, plan.digest)
        for line in evaluation_lines(plan.label, made):
            self._workplace.display.say(line)


def evaluation_lines(label: str, made: Evaluation) -> Iterator[str]:
    """What an evaluation says of all its problems, and of each set where there are several."""
    figures = f"{_said(made.figures())}{not_judged(made.error_rate)}"
    yield f"{label}, v{made.step}, {problem_count(made.problems)}: {figures}"
    for name, size in made.sizes.items():
        yield f"{label}, v{made.step}, {name} ({size}): {_said(made.sets[name])}"


def _said(figures: Mapping[str, float]) -> str:
    return (
        f"reward {figures['reward']:.3f} greedy, {figures['reward_sampled']:.3f} sampled; "
        f"pass rate {figures['pass_at_1']:.3f} greedy, {figures['sampled']:.3f} sampled"
    )


def _logged(plan: EvaluationPlan, line: MetricLine) -> Evaluation:
    """The evaluation that a line of the metrics holds; those of older versions have no rewards."""

    def of(what: str, otherwise: float) -> float:
        return line.metrics.get(plan.metric(what), otherwise)

    sizes = plan.sizes if len(plan.sizes) > 1 else {}
    of_sets = {
        name: {
            metric.rpartition("/")[2]: value
            for metric, value in line.metrics.items()
            if metric.startswith(f"eval/{name}/")
        }
        for name in sizes
    }
    return Evaluation(
        step=line.step,
        problems=len(plan.problems.held_out),
        greedy=of("pass_at_1", math.nan),
        sampled=of("sampled", math.nan),
        pass_at_k=of("pass_at_k", math.nan),
        k=plan.samples,
        reward=of("reward", math.nan),
        reward_sampled=of("reward_sampled", math.nan),
        error_rate=of("error_rate", 0.0),
        sets=of_sets,
        sizes=sizes,
    )
