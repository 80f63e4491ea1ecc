"""Flow `rlvf-eval`: how well a policy solves a set of problems."""

from prefect import flow

from flows.config import EvalConfig, SftConfig
from flows.runs import Run, saved_config
from flows.sft import sft
from flows.workplace import Workplace, workplace
from infra import store
from infra.checkpoints import NotARun, is_run, resolve_run
from infra.tracking import open_run
from infra.weights import PolicyVersion, newest_version
from rl.config import TINY
from tasks import calls
from tasks.calls import GeneratorSpec
from tasks.evaluate import Evaluation, evaluate
from tasks.problem_set import problems_to_solve, set_name
from tasks.verify import check_verifiers


@flow(name="rlvf-eval")
def evaluate_policy(config: EvalConfig) -> Evaluation:
    """Solve the problems greedily and sampled; a run's evaluation is logged to its MLflow run."""
    problems = problems_to_solve(config.sets, config.verifier, config.held_out, config.seed)
    with workplace(config.cluster, config.placement) as place:
        check_verifiers(place.dispatch, problems.verifiers)
        version, run = chosen_policy(config, place)
        spec = GeneratorSpec(config.policy, config.sampling, config.samples, config.seed)
        place.display.stage("evaluate")
        evaluation = evaluate(place.dispatch, spec, version, problems)
        if run is not None:
            log(config, place, run, evaluation)
        return evaluation


def chosen_policy(config: EvalConfig, place: Workplace) -> tuple[PolicyVersion, Run | None]:
    """The weights to evaluate, and the run that they belong to if they do: a run's newest version, or a model that is
    first stored as a version of its own.

    Raises:
        NotARun: the run named has no weights.
    """
    model = config.policy.model
    uri = resolve_run(model, place.runs)
    if is_run(uri):
        newest = newest_version(uri)
        if newest is None:
            raise NotARun(f"{uri} has published no weights yet")
        return newest, Run(uri, saved_config(uri), resumed=True)
    if model == TINY:
        warm = SftConfig(policy=config.policy, cluster=config.cluster, placement=config.placement)
        uri = sft(warm)
        return PolicyVersion(0, uri, store.read_manifest(uri).digest), None
    return place.dispatch.run("evaluate", calls.store_model, model, config.policy, str(place.home / "models")), None


def log(config: EvalConfig, place: Workplace, run: Run, evaluation: Evaluation) -> None:
    """Log to the run's MLflow run, under the problem set's name, at the policy's version."""
    name = set_name(config.sets)
    with open_run(
        run.config.tracking,
        home=place.home,
        experiment=set_name(run.config.sets),
        run_name=run.name,
        run_id=run.mlflow_run,
        params={},
        local=run.local_folder(place.home) / f"eval-{name}.jsonl",
    ) as tracker:
        tracker.log(
            evaluation.step,
            {
                f"eval/{name}/pass_at_1": evaluation.greedy,
                f"eval/{name}/sampled": evaluation.sampled,
                f"eval/{name}/pass_at_{evaluation.k}": evaluation.pass_at_k,
                f"eval/{name}/error_rate": evaluation.error_rate,
            },
        )
