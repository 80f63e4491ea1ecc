"""How a training run ended, for its summary, its callers and ``result.json``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flows.start.runs import local_folder
from flows.start.tracked import is_told
from infra.home import rlvf_home
from infra.runs.checkpoints import MODEL, Best
from infra.runs.mlflow_run import Page
from infra.runs.record import RESULT, read_about
from infra.storage import place
from infra.storage.typed import DamagedError, read_typed

if TYPE_CHECKING:
    from tasks.evaluate import Evaluation

T = TypeVar("T", "TrainResult", "FinetuneResult")


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    run: str  # its URI
    steps: int  # the version of the final policy
    held_out: int  # problems that are kept out of training, of which the next ten figures are
    reward_before: float | None  # mean reward of greedy completions, before the first step
    reward_after: float | None  # and after the last; None where no problems are held out
    reward_sampled_before: float | None
    reward_sampled_after: float | None
    pass_rate_before: float | None  # share of them with reward 1
    pass_rate_after: float | None
    sampled_before: float | None
    sampled_after: float | None
    error_rate_before: float | None  # share of completions that could not be judged, which count in no other figure
    error_rate_after: float | None
    sets: Mapping[str, Mapping[str, float | None]]  # the same figures, and `problems`, of each set where there are more
    rollouts_per_second: float  # over the steps of the last session that made any
    seconds: float  # of this session
    stages: dict[str, float]  # share of those steps' time by stage, as the flow saw it
    lost: dict[str, int]  # calls that died with their worker
    limit: str  # what limited its last steps, in a sentence; empty where they were too few
    picture: str
    report: str | None  # None where tracking.report is false
    checkpoint: str
    best: Best | None  # the version that was kept as the best
    page: Page
    flow_run_id: str | None  # of Prefect


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


def finished(uri: str, steps: int | None, kind: type[T]) -> T | None:
    """How the run at ``uri`` ended, where it has made these steps, its model is there and MLflow has all: a resume has
    nothing to do."""
    try:
        if read_about(uri, local_folder(uri, rlvf_home())).get("status") != "finished" or not is_told(uri):
            return None
        found = read_typed(place.join(uri, RESULT), kind, "")
    except DamagedError:
        return None
    has_model = place.exists(place.join(uri, MODEL))
    return found if found is not None and has_model and (found.run, found.steps) == (uri, steps) else None


def kept_pace(path: Path) -> tuple[float, dict[str, float]]:
    """The completions a second and the stages' shares of the result there, for a session that makes no step; 0 and none
    where there is none, or what is there is none of ours."""
    try:
        kept = json.loads(path.read_text())
        shares = {str(stage): float(share) for stage, share in kept["stages"].items()}
        return float(kept["rollouts_per_second"]), shares
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return 0.0, {}


def problem_count(problems: int, kind: str = "") -> str:
    """'200 problems', '1 held-out problem'."""
    return f"{problems} {kind}problem{'' if problems == 1 else 's'}"


def not_judged(share: float) -> str:
    """Words behind figures that such a share of the completions counts in none of; empty without one."""
    return f", {share:.1%} could not be judged" if share else ""


def held_out_figures(before: "Evaluation | None", after: "Evaluation | None") -> dict[str, Any]:
    """The fields of a result that say how rewards on the held-out problems went."""
    was, now = (each.figures() if each else {} for each in (before, after))
    sets_before, sets_after = (each.sets if each else {} for each in (before, after))
    return {
        "held_out": after.problems if after else 0,
        **_before_and_after(was, now),
        "sets": {
            name: {"problems": size, **_before_and_after(sets_before.get(name, {}), sets_after[name])}
            for name, size in (after.sizes if after else {}).items()
        },
    }


def _before_and_after(was: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float | None]:
    figures = {"pass_rate": "pass_at_1"} | {
        name: name for name in ("reward", "reward_sampled", "sampled", "error_rate")
    }
    return {
        f"{name}_{when}": found.get(figure)
        for name, figure in figures.items()
        for when, found in (("before", was), ("after", now))
    }
