"""How a training run ended, for its summary, its callers and ``result.json``."""

from dataclasses import dataclass

from infra.runs.checkpoints import Best
from infra.runs.mlflow_run import Page


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    run: str  # its URI
    steps: int  # the version of the final policy
    reward_before: float | None  # mean reward of greedy completions of held-out problems, before the first step
    reward_after: float | None  # and after the last; None where no problems are held out
    reward_sampled_before: float | None
    reward_sampled_after: float | None
    pass_rate_before: float | None  # share of them with reward 1
    pass_rate_after: float | None
    sampled_before: float | None
    sampled_after: float | None
    rollouts_per_second: float  # over this session's steps
    seconds: float  # of this session
    stages: dict[str, float]  # share of the steps' time by stage, as the flow saw it
    lost: dict[str, int]  # calls that died with their worker
    picture: str
    report: str | None  # None where tracking.report is false
    checkpoint: str
    best: Best | None  # the version that was kept as the best
    page: Page
    flow_run_id: str | None  # of Prefect
