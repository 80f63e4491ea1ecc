"""What a training run is evaluated on, and when."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

from flows.config import HELD_OUT, EvaluationConfig, TrainConfig
from flows.start.as_trained import set_as_trained
from infra.runs.metric_log import MetricLine
from rl.config import ProblemsConfig, VerifierConfig
from rl.problems.tables import ProblemError
from rl.records import Problem
from rl.verifiers.spec import judged_by
from tasks.sets.named_set import judges, set_names
from tasks.sets.problem_set import ProblemSet, longest, problems_to_solve


@dataclass(frozen=True)
class EvaluationPlan:
    """One of the sets that a run is evaluated on."""

    name: str  # "" for what was kept out of training
    problems: ProblemSet
    every: int  # steps; 0: before the first and after the last one alone
    samples: int
    note: str = ""  # what it takes from the sets that are trained on
    tokens: int | None = None  # of a completion, at most; None where figures of an older version do not tell it

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.name or "held-out"

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """How many problems of each set it has."""
        return dict(Counter(problem.set for problem in self.problems.held_out))

    @cached_property
    def digest(self) -> str:
        """The same for two plans whose figures may be compared."""
        return digest_of(self.problems, self.samples, self.tokens)

    def continuing(self, lines: Iterable[MetricLine]) -> "EvaluationPlan":
        """The same, with the digest that older versions gave it where these lines have that."""
        older = replace(self, tokens=None)
        return older if any(line.plan == older.digest for line in lines) else self

    def metric(self, what: str) -> str:
        """The name of one of its figures."""
        return f"eval/{self.name}/{what}" if self.name else f"eval/{what}"

    def is_due(self, step: int, last: int) -> bool:
        """Whether it is evaluated at version ``step`` of a run that ends with ``last``."""
        return step in (0, last) or (self.every > 0 and step % self.every == 0)


def digest_of(problems: ProblemSet, samples: int, tokens: int | None = None) -> str:
    """A digest of an evaluation's problems, their verifiers, the samples of each problem, and the tokens of one."""
    asked = [
        [problem.prompt, problem.target, problem.set, repr(problem.instructions), problem.extra]
        for problem in problems.held_out
    ]
    judges = {
        name: [spec.name, spec.source, spec.needs_end, spec.timeout_reward] for name, spec in problems.verifiers.items()
    }
    if (environment := problems.environment) is not None:
        judges["environment of all others"] = [environment.name, environment.source]
    told = [asked, judges, samples, *([] if tokens is None else [tokens])]
    said = json.dumps(told, sort_keys=True, default=str)
    return sha256(said.encode()).hexdigest()[:16]


def plans(config: TrainConfig, training: ProblemSet) -> list[EvaluationPlan]:
    """The evaluations that the configuration asks for, that on the held-out problems among them. A set is asked and
    judged as `rlvf eval` of the run does it.

    Raises:
        ProblemError: a set that cannot be read, or all of whose problems are trained on.
    """
    asked = list(config.evals)
    if training.held_out and not any(each.path == HELD_OUT for each in asked):
        asked.append(EvaluationConfig(path=HELD_OUT))
    names = set_names([*config.sets, *(each for each in asked if each.path != HELD_OUT)])[len(config.sets) :]
    found, tokens = [], config.sampling.max_tokens
    for each in asked:
        samples = each.samples or config.batch.samples
        if each.path == HELD_OUT:
            if not training.held_out:
                raise ProblemError("evals: no problems are held out: leave out --held_out 0, or this evaluation")
            found.append(EvaluationPlan("", _cut(training, each.limit), each.every, samples, tokens=tokens))
            continue
        asked_for = _given(each)
        of = set_as_trained(asked_for, config)
        try:
            known = training.trained, each.limit, config.environment
            problems = problems_to_solve([of], config.verifier, None, config.seed, *known)
        except ProblemError as error:
            raise ProblemError(f"evals: {error}") from error
        name = names.pop(0)
        note = _taken(name, asked_for, of, config.verifier)
        found.append(EvaluationPlan(name, _cut(problems, each.limit), each.every, samples, note, tokens))
    return found


def _given(each: EvaluationConfig) -> ProblemsConfig:
    """The set of an evaluation, with what it was given as its `model_fields_set`. A saved configuration, and one that
    came by Prefect, has the others as null: they were not."""
    own = {*EvaluationConfig.OWN, "weight"}
    return ProblemsConfig.model_validate(each.model_dump(exclude=own, exclude_none=True))


def _taken(name: str, given: ProblemsConfig, of: ProblemsConfig, verifier: VerifierConfig) -> str:
    """A line that says what the set takes from those that are trained on; empty where it is nothing."""
    alone = given.model_copy(update={"verifier": judged_by(given, VerifierConfig())})
    values = {field: getattr(of, field) for field in ("prompt", "target", "verifier", "system", "template")}
    values["verifier"] = judged_by(of, verifier)
    new = [f"{field} {value!r}" for field, value in values.items() if value != getattr(alone, field)]
    return f"{name}: evaluated as the run is trained, with {', '.join(new)}" if new else ""


def what_judges(training: ProblemSet, of: Sequence[EvaluationPlan]) -> str:
    """A line on what judges which set, those that are evaluated on among them; empty where one judges all."""
    programs = training.judging
    for plan in of:
        if plan.name:  # what was kept out of training is of the sets themselves
            [programs[plan.name]] = plan.problems.judging.values()
    return f"judged by {judges(programs)}" if len({spec.name for spec in programs.values()}) > 1 else ""


def problems_to_check(training: ProblemSet, of: Sequence[EvaluationPlan]) -> list[Problem]:
    """Problems among which is the longest prompt of all that the run trains and is evaluated on."""
    return [*training.longest(), *(problem for plan in of if plan.name for problem in longest(plan.problems.held_out))]


def _cut(problems: ProblemSet, limit: int | None) -> ProblemSet:
    """The first of the problems of each set, ``limit`` in all, by their shares; at least one of each."""
    if limit is None or len(problems.held_out) <= limit:
        return problems
    there = Counter(problem.set for problem in problems.held_out)
    wanted = dict.fromkeys(there, 1)
    for _ in range(limit - len(there)):
        room = [name for name in there if wanted[name] < there[name]]
        wanted[max(room, key=lambda name: there[name] / (2 * wanted[name] + 1))] += 1  # Sainte-Laguë
    kept = []
    for problem in problems.held_out:
        if wanted[problem.set]:
            wanted[problem.set] -= 1
            kept.append(problem)
    return replace(problems, held_out=tuple(kept))
