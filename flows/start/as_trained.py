"""A run's own settings as the defaults of its evaluation: what is measured is what was trained."""

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import BaseModel

from flows.config import EvalConfig, TrainConfig
from flows.options.acted_on import refuse_beside
from flows.options.tree import changed_leaves
from flows.start.edited import edited_judges, edited_problems
from flows.start.lineage import BEFORE, saved_problems, trained_before
from flows.start.runs import Run, existing_run, with_secrets
from flows.start.saved import saved_config
from flows.start.trust import refuse_swapped, trusted
from infra.home import runs_uri
from infra.runs.checkpoints import BEST, MODEL, is_run
from infra.security.secrets import masked
from infra.storage import place
from rl.config import AUTO, OURS, PLAYED, PolicyConfig, ProblemsConfig, SamplingConfig, is_in_code, is_made, whole_path
from rl.learning.algorithm_config import AlgorithmConfig
from rl.problems.rows import asked, normalized
from rl.verifiers.spec import judged_by, named
from tasks.sets.named_set import named_sets, refuse_unplayed, set_name
from tasks.sets.problem_set import ProblemSet, open_problems, problems_to_solve
from tasks.sets.trained_on import TrainedOn, prompts_of, seen_among

C = TypeVar("C", bound=BaseModel)
OWN = (
    "policy.model",
    "policy.device",
    "policy.engine",
    "again",
    "cluster",
    "placement",
    "tracking",
)  # change no figure


@dataclass(frozen=True)
class Asked:
    """An evaluation with every setting resolved."""

    config: EvalConfig
    problems: ProblemSet
    notes: tuple[str, ...] = ()  # what a person has to know of it, a line each
    edited: tuple[str, ...] = ()  # of these, what is by now another than the run was trained with
    run: Run | None = None  # whose newest version is evaluated, as it was `trusted`; None: a model


def asked_evaluation(config: EvalConfig, trust: bool = False, *, ask: bool = False) -> Asked:
    """Resolve what an evaluation asks for; nothing is started or written. `trust` and `ask` are those of `trusted`. A
    run's configuration is read here and nowhere else: whoever can write it may do so after somebody has said yes to it.

    Raises:
        NotTrustedError: the code of a run that is not `trusted`.
        ValueError: what was asked for cannot be read or makes no sense; one line.
    """
    named = existing_run(config.policy.model, runs_uri())
    uri = _run_of(named)
    if uri is None:
        return asked_of_model(config)
    trained = saved_config(uri)
    now = _laid_over(config, trained)
    used = trained.model_copy(
        update={
            "verifier": now.verifier,
            "environment": now.environment,
            "problems": now.problems,
            "mix": now.mix,
            "evals": (),
            "algorithm": AlgorithmConfig(),  # whose code an evaluation does not run
            "cluster": config.cluster,
        }
    )
    run = Run(uri, used, resumed=True, saved=trained)
    trusted(run, trust, ask=ask)
    asked = asked_of_run(config, run.name, trained, saved_problems(uri))
    refuse_swapped(run, asked.problems.programs)
    judged = tuple(f"{run.name} was trained with another {line}" for line in edited_judges(uri, asked.problems))
    asked = replace(asked, notes=(*asked.notes, *judged), edited=(*asked.edited, *judged))
    if uri != named:  # its result, which is a model like any other
        return asked
    given = config.tracking.uri  # again, where it was saved without its password
    same = given is not None and masked(given) == trained.tracking.uri
    tracking = config.tracking if same else with_secrets(trained.tracking, "tracking")
    return replace(asked, run=replace(run, config=trained.model_copy(update={"tracking": tracking})))


def _run_of(uri: str) -> str | None:
    """The run that lies there, or whose result does."""
    if is_run(uri):
        return uri
    above, _, name = uri.rstrip("/").rpartition("/")
    return above if name in (MODEL, BEST) and is_run(above) else None


def asked_of_model(config: EvalConfig) -> Asked:
    """The evaluation of a model that is no run. Raises as `problems_to_solve` does."""
    if config.policy.lora.rank:
        raise ValueError(f"policy.lora: adapters are a run's, and {config.policy.model} is none; leave it out")
    refuse_unplayed(config.sets, config.environment)
    model = config.policy.model
    asked = config.held_out, config.seed, trained_before(whole_path(model))
    problems = problems_to_solve(config.sets, config.verifier, *asked, environment=config.environment)
    left = f"{problems.left_out} that {model} was trained on are left out (--held_out 0 takes all)"
    return Asked(config, problems, (left,) if problems.left_out else ())


def asked_of_run(
    config: EvalConfig, name: str, trained: TrainConfig, kept: Mapping[str, TrainedOn] | None = None
) -> Asked:
    """The evaluation of the run ``name``: whatever ``config`` does not give is as in its training, and problems that it
    was trained on are left out unless ``held_out`` is given. Which these are is ``kept`` with the run; None: as its
    files are now.

    Raises:
        ProblemError: problems that cannot be read, or nothing is left of them.
        VerifierError: a verifier that does not exist.
    """
    usual = with_secrets(_laid_over(EvalConfig(policy=PolicyConfig(model=config.policy.model)), trained))
    now = with_secrets(_laid_over(config, trained))
    notes = [f"{name} was trained with {line}" for line in _differences(usual, now)]
    seen: frozenset[bytes] = frozenset()
    try:
        files = kept
        if files is None:
            how = trained.held_out, trained.seed
            files = open_problems(usual.sets, usual.verifier, *how, environment=usual.environment).files
        seen = prompts_of(files.values())
    except (ValueError, OSError) as error:
        if now.sets == usual.sets:
            raise
        notes.append(f"whether {name} was trained on some of these problems cannot be told: {error}")
    edited: list[str] = []
    if kept and (
        trained_on := {_canonical(each.path) for each in now.sets} & {_canonical(each.path) for each in usual.sets}
    ):
        try:
            sets = named_sets(usual.sets, usual.verifier, usual.environment)
            were = [each for each in sets if _canonical(each.config.path) in trained_on]
            edited = [f"{name} was trained with other {line}" for line in edited_problems(kept, were, trained.held_out)]
        except (ValueError, OSError) as error:
            edited = [f"whether these are the problems that {name} was trained on cannot be told: {error}"]
        notes += edited
    known = seen, trained.held_out or None, now.environment
    problems = problems_to_solve(now.sets, now.verifier, now.held_out, now.seed, *known)
    again = seen_among(problems.held_out, seen)
    included = sum(normalized(asked(problem)) in again for problem in problems.held_out)
    if problems.left_out:
        who = f"{name}, or what it began from," if BEFORE in (kept or {}) else name
        notes.append(
            f"{len(problems.held_out)} problems of set {problems.name}; {problems.left_out} that {who} trains on "
            "are left out (--held_out 0 takes all)"
        )
    elif included:
        notes.append(
            f"{len(problems.held_out)} problems of set {problems.name}: {name} was trained on {included} of them"
        )
    notes.append(
        f"{name}: judged by {problems.judged_by}, at most {now.sampling.max_tokens} tokens, temperature "
        f"{now.sampling.temperature:g}, {now.samples} samples"
    )
    return Asked(now, problems, tuple(notes), tuple(edited))


def _laid_over(config: EvalConfig, trained: TrainConfig) -> EvalConfig:
    """What ``config`` gives over what the run was trained with. An option of the first set alone, such as its prompt's
    column, leaves the others as they are; a path names another set, in place of all."""
    given = config.model_fields_set
    policy = _over(trained.policy, config.policy).model_copy(
        update={name: getattr(config.policy, name) for name in ("model", "device", "engine")}
    )
    if policy.engine != OURS and policy.lora.rank:
        raise ValueError(
            "policy.engine: a server is given whole weights, and this run has adapters; evaluate what "
            "rlvf export --merge makes of it"
        )
    environment = _over(trained.environment, config.environment)
    named_one = config.environment.name is not None  # which gives the rewards, whatever judged all sets before
    another = (named_one and trained.environment.name is None) or "name" in config.verifier.model_fields_set
    verifier = config.verifier if named_one else _over(trained.verifier, config.verifier)
    sampling = _sampling(trained.sampling, config.sampling)
    others = "problems" in given and "path" in config.problems.model_fields_set
    first, *mix = (each.model_copy(update={"verifier": None}) if another else each for each in trained.sets)
    first = set_as_trained(config.problems, trained, another) if others else _over(first, config.problems)
    if others or "mix" in given:
        mix = [set_as_trained(each, trained, another) for each in config.mix]
    refuse_beside(environment, verifier, policy, sampling, judged=any(each.judged for each in (first, *mix)))
    if named_one:
        refuse_unplayed((first, *mix), environment)
    return config.model_copy(
        update={
            "policy": policy,
            "problems": first,
            "mix": tuple(mix),
            "verifier": verifier,
            "environment": environment,
            "sampling": sampling,
            "samples": config.samples if "samples" in given else trained.batch.samples,
            "seed": config.seed if "seed" in given else trained.seed,
        }
    )


def _over(base: C, over: C) -> C:
    """A section with the fields that were given of another one."""
    return base.model_copy(update={name: getattr(over, name) for name in over.model_fields_set})


def _sampling(trained: SamplingConfig, asked: SamplingConfig) -> SamplingConfig:
    """A limit that is given as none, as a form's section gives it, is the run's too."""
    over = _over(trained, asked)
    return over.model_copy(update={"max_tokens": trained.max_tokens}) if over.max_tokens is None else over


def set_as_trained(asked: ProblemsConfig, trained: TrainConfig, another: bool = False) -> ProblemsConfig:
    """The set of an evaluation, asked and judged as the run does it but for what is in `model_fields_set`.

    A set that the run was trained on keeps its columns, its verifier, its system prompt and its template. Another file
    gets those that all sets of the run share; one that is made in code has its own. With ``another`` the evaluation
    names a verifier or an environment, which judges in place of the run's."""
    where = _canonical(asked.path)
    if same := [each for each in trained.sets if _canonical(each.path) == where]:
        return _over(same[0].model_copy(update={"verifier": None}) if another else same[0], asked)
    alike: dict[str, set[str | None]]
    if asked.path in PLAYED:
        alike = {}
    elif is_made(asked.path):
        alike = {"verifier": {named(AUTO, asked.path)}}
    else:
        acted_on = trained.environment.name is not None
        judges = {each.verifier if acted_on else judged_by(each, trained.verifier) for each in trained.sets}
        alike = {"verifier": judges}
        if not {"system", "template"} & asked.model_fields_set:  # they make one prompt
            alike |= {word: {getattr(each, word) for each in trained.sets} for word in ("system", "template")}
    if another:
        alike.pop("verifier", None)
    shared = {name: values.pop() for name, values in alike.items() if len(values) == 1}
    return asked.model_copy(
        update={name: value for name, value in shared.items() if name not in asked.model_fields_set}
    )


def _canonical(path: str) -> str:
    """One spelling for all paths of a file, on this machine or elsewhere."""
    local = None if is_in_code(path) else place.local_path(path)
    return posixpath.normpath(path) if local is None else os.path.realpath(local)


def _differences(usual: EvalConfig, now: EvalConfig) -> list[str]:
    """'sampling.max_tokens 40, here 12' for each setting that is another one here."""
    usual, now = _judged(usual), _judged(now)
    lines = [
        f"{path} {was}, here {value}"
        for path, was, value in changed_leaves(usual, now)
        if not path.startswith(OWN) and path not in ("mix", "held_out")
    ]
    if [each.path for each in usual.mix] != [each.path for each in now.mix]:
        lines.append(f"problems of {set_name(usual.sets)}, here of {set_name(now.sets)}")
    else:
        for at, (was, here) in enumerate(zip(usual.mix, now.mix, strict=True)):
            lines += [f"mix[{at}].{path} {old}, here {new}" for path, old, new in changed_leaves(was, here)]
    return lines


def _judged(config: EvalConfig) -> EvalConfig:
    """With the verifier at each set that it judges, for comparison."""
    first, *mix = (each.model_copy(update={"verifier": judged_by(each, config.verifier)}) for each in config.sets)
    auto = config.verifier.model_copy(update={"name": AUTO})
    return config.model_copy(update={"problems": first, "mix": tuple(mix), "verifier": auto})
