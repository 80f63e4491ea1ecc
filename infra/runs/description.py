"""What MLflow's page says of a training run, beside its name.

That page sorts charts, and the sections that they stand in, by name and by nothing else (3.17, in the browser), and its
table has the order of its database: `reward` comes after `batch`, `eval` and `perf`. So the description begins with a
link to the rewards' own chart.
"""

import json
import re
from collections.abc import Mapping
from urllib.parse import quote

TAG = "mlflow.note.content"
REWARDS = ("reward/mean", "eval/reward")
EXAMPLES = """Training of **{model}** on the examples of **{problems}** by `rlvf {method}`.

First [the loss]({chart}) of each step and on what is held out. The artifact `report.html` shows more on one page."""
TEXT = """Reinforcement learning of **{model}** on **{problems}** by **{loss}**.

First [`reward/mean` (of each step) and `eval/reward` (held-out problems)]({chart}), then `policy/entropy`,
`completion/truncated` and `policy/mismatch_kl`. The artifact `report.html` shows them on one page."""


def description(params: Mapping[str, str], experiment_id: str, run_id: str) -> str | None:
    """Markdown; None if it is no training run."""
    named = [params.get(name) for name in ("policy.model", "problems.path", "algorithm.name", "method")]
    # no Markdown of a file's name
    model, problems, loss, method = (re.sub(r"[^\w.:/ -]", "_", name or "") for name in named)
    if not model:
        return None
    if method:  # on examples, by that command
        prefix = method.replace("-", "_")
        losses = chart_of(experiment_id, run_id, (f"{prefix}/loss", f"{prefix}/held_out_loss"))
        return EXAMPLES.format(model=model, problems=problems, method=method, chart=losses)
    return TEXT.format(model=model, problems=problems, loss=loss, chart=chart_of(experiment_id, run_id, REWARDS))


def chart_of(experiment_id: str, run_id: str, metrics: tuple[str, ...]) -> str:
    """The address, within MLflow's page, of one chart that shows the metrics of a run step by step."""
    asked = {
        "runs": [run_id],
        "metric": metrics[0],
        "experiments": [experiment_id],
        "plot_metric_keys": metrics,
        "plot_layout": {},
    }
    query = "&".join(f"{name}={quote(json.dumps(value, separators=(',', ':')))}" for name, value in asked.items())
    return f"#/metric?{query}&x_axis=step"
