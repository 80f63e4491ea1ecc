"""What a training run is evaluated on, and when."""

from dataclasses import dataclass, replace

from flows.config import HELD_OUT, EvaluationConfig, TrainConfig
from rl.config import ProblemsConfig
from rl.tables import ProblemError
from tasks.problem_set import ProblemSet, problems_to_solve, set_names


@dataclass(frozen=True)
class Plan:
    """One of the sets that a run is evaluated on."""

    name: str  # "" for what was kept out of training
    problems: ProblemSet
    every: int  # steps; 0: before the first and after the last one alone
    samples: int

    def metric(self, what: str) -> str:
        """The name of one of its figures."""
        return f"eval/{self.name}/{what}" if self.name else f"eval/{what}"

    def is_due(self, step: int, last: int) -> bool:
        """Whether it is evaluated at version ``step`` of a run that ends with ``last``."""
        return step in (0, last) or (self.every > 0 and step % self.every == 0)


def plans(config: TrainConfig, training: ProblemSet) -> list[Plan]:
    """The evaluations that the configuration asks for, that on the held-out problems among them.

    Raises:
        ProblemError: a set that cannot be read, or all of whose problems are trained on.
    """
    asked = list(config.evals)
    if training.held_out and not any(each.path == HELD_OUT for each in asked):
        asked.append(EvaluationConfig(path=HELD_OUT))
    names = set_names([*config.sets, *(each for each in asked if each.path != HELD_OUT)])[len(config.sets) :]
    found = []
    for each in asked:
        samples = each.samples or config.batch.samples
        if each.path == HELD_OUT:
            if not training.held_out:
                raise ProblemError("evals: no problems are held out: leave out --held_out 0, or this evaluation")
            found.append(Plan("", _cut(training, each.limit), each.every, samples))
            continue
        of = ProblemsConfig.model_validate(each.model_dump(exclude=set(EvaluationConfig.OWN)))
        try:
            problems = problems_to_solve([of], config.verifier, None, config.seed, training.trained, each.limit)
        except ProblemError as error:
            raise ProblemError(f"evals: {error}") from error
        found.append(Plan(names.pop(0), _cut(problems, each.limit), each.every, samples))
    return found


def _cut(problems: ProblemSet, limit: int | None) -> ProblemSet:
    return problems if limit is None else replace(problems, held_out=problems.held_out[:limit])
