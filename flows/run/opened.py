"""What a run is trained with, as this process has read it: a run that goes on in place is the same run, whatever is
edited or removed meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from flows.run.plans import EvaluationPlan, plans
from flows.start.lineage import saved_before, trained_before
from flows.start.runs import Run, without_secrets
from flows.start.trust import refuse_swapped
from infra.interrupts import put_off
from rl.algorithms import ALGORITHMS
from rl.environments.spec import EnvironmentSpec
from rl.graph import Graph
from rl.learning.algorithm_config import AlgorithmSpec
from rl.verifiers.spec import VerifierSpec
from tasks.own_algorithm import open_algorithm
from tasks.sets.problem_set import ProblemSet, open_problems


@dataclass(frozen=True)
class Opened:
    """A run, its problems and its evaluations."""

    run: Run
    problems: ProblemSet
    plans: Sequence[EvaluationPlan]
    algorithm: AlgorithmSpec

    @classmethod
    def of(cls, run: Run) -> Self:
        """What the files that its configuration names hold now.

        Raises:
            ProblemError: files that cannot be read, or are not those that a resumed run was trained on.
            VerifierError: a verifier that does not exist.
            EnvironmentSpecError: an environment that does not exist, or that none of the problems is played with.
            OwnAlgorithmError: an algorithm that cannot be used.
            NotTrustedError: one of a resumed run is not what was trusted.
            ValueError: something is said of a critic or a reference, and the algorithm has none; or it has a critic and
                the resumed run none, or the other way round; or it needs what an environment does not give.
        """
        config = run.config
        asked = config.held_out, config.seed, config.batch.prompts, config.environment
        before = saved_before(run.uri) if run.resumed else trained_before(config.policy.model)
        problems = replace(open_problems(config.sets, config.verifier, *asked), before=before)
        if run.resumed:
            run.refuse_other_problems(problems)
        algorithm = open_algorithm(config.algorithm)
        found = cls(run, problems, plans(config, problems), algorithm)
        if run.resumed:
            refuse_swapped(run, found.programs)
        needs = algorithm.needs  # whose code runs here, now that it is known
        if algorithm.name not in ALGORITHMS:
            with put_off():
                from rl.learning.dry_run import try_algorithm  # with torch
            try_algorithm(algorithm)
            config.refuse_by_needs(needs)
        if run.resumed:
            run.refuse_other_models(critic="values" in needs)
        return found

    @property
    def verifiers(self) -> Mapping[str, VerifierSpec]:
        """All verifiers, by a name for each."""
        of_plans = {
            f"{plan.name}:{name}": spec for plan in self.plans for name, spec in plan.problems.verifiers.items()
        }
        return {**self.problems.verifiers, **of_plans}

    @property
    def programs(self) -> list[VerifierSpec | EnvironmentSpec | AlgorithmSpec]:
        """All that may have a user's code."""
        of_plans = [program for plan in self.plans for program in plan.problems.programs]
        return [*self.problems.programs, *of_plans, self.algorithm]

    @property
    def graph(self) -> Graph:
        """The calls of a step."""
        judging = self.problems.verifiers.values()
        return self.algorithm.graph(reward_model=any(spec.rewards is not None for spec in judging))

    def on_storage(self) -> Self:
        """The same once the run is written: what a later try of this process goes on with."""
        return replace(self, run=replace(self.run, resumed=True, saved=without_secrets(self.run.config)))
