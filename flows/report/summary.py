"""The few lines that a person wants at the end of a run."""

import os
import shlex
import shutil
import sys
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.report.result import not_judged, problem_count
from flows.start.runs import Run
from infra.home import rlvf_home, runs_uri
from infra.runs.metric_log import read_metrics
from infra.runs.record import METRICS
from infra.services.addresses import is_up
from infra.services.links import keyed
from infra.services.of_home import server_of
from infra.storage import place

if TYPE_CHECKING:
    from flows.report.result import TrainResult
    from tasks.evaluate import Evaluation


def run_name(run: Run) -> str:
    """What the person may call the run: its name where it lies at home, else its URI."""
    return run.name if run.uri == place.join(runs_uri(), run.name) else run.uri


def prefect_page(flow_run_id: str) -> tuple[str, str]:
    """The address of a flow run's page, and the command that serves it where nobody else does: the server of a plain
    `rlvf train` ends with it."""
    served = os.environ.get("PREFECT_API_URL")
    home = rlvf_home()
    if served and served == server_of(home) and not is_up(home):
        served = None
    url = (served or "http://127.0.0.1:4200/api").removesuffix("/api")
    return f"{url}/runs/flow-run/{flow_run_id}", "" if served else "rlvf up"


def summary(run: Run, result: "TrainResult", seconds: float) -> str:
    """How the run went, where its results lie, and how to look at its pages."""
    shares = "  ".join(f"{stage} {share:.0%}" for stage, share in result.stages.items())
    lost = ", ".join(f"{count} x {call}" for call, count in result.lost.items())
    pages = [("MLflow", result.page.command, result.page.url)]
    if result.flow_run_id is not None:
        url, command = prefect_page(result.flow_run_id)
        pages.append(("Prefect", command or None, url))
    rows = [
        *_went(run, result, seconds),
        ("time", shares),
        *([("limit", result.limit)] if result.limit else []),
        *([("lost", f"{lost}, done again elsewhere")] if lost else []),
        *_audits(Path(result.picture).with_name(METRICS)),
        *([("report", result.report)] if result.report and Path(result.report).exists() else []),
        *([("picture", result.picture)] if Path(result.picture).exists() else []),
        ("checkpoint", f"{result.checkpoint} ({_layout(run)})"),
        *(
            [("best", f"{result.best.uri}: v{result.best.step}, reward {result.best.reward:.3f}")]
            if result.best
            else []
        ),
        *[
            (
                name,
                f"{_venv(command)}\n{'':12}open the link that it prints, then {_within(url)}"
                if command
                else keyed(rlvf_home(), name.lower(), url),
            )
            for name, command, url in pages
        ],
    ]
    return "\n".join(f"{name:<12}{text}" for name, text in rows)


def outcome(run: Run, result: "TrainResult") -> list[str]:
    """How the run went, without the links to its pages, whose keys are for the terminal alone."""
    limit = [("limit:", result.limit)] if result.limit else []
    return [f"{name} {text}".strip() for name, text in [*_went(run, result, result.seconds), *limit]]


def finetune_outcome(method: str, name: str, result: Mapping[str, Any]) -> str:
    """How a run on examples went, in one line; ``result``: the fields of its record."""
    before = result["before"]
    changed = ", ".join(
        f"{figure.rpartition('held_out_')[2]} {before[figure]:.3f} → {of:.3f}"
        if figure in before
        else f"{figure.rpartition('held_out_')[2]} {of:.3f}"
        for figure, of in result["after"].items()
    )
    on = f"; on {result['held_out']} held-out examples: {changed}" if changed else ""
    use = (
        f"--verifier reward-model:{shlex.quote(name)}" if method == "reward-model" else f"--policy {shlex.quote(name)}"
    )
    return f"{name}: {result['steps']} steps in {result['seconds']:.0f} s{on}; use it: {use}"


def evaluation_outcome(found: "Evaluation") -> str:
    """The figures of an evaluation in one line."""
    return (
        f"{found.problems} problems, policy v{found.step}: reward {found.reward:.3f} greedy, "
        f"{found.reward_sampled:.3f} sampled; pass@1 {found.greedy:.3f} greedy, {found.sampled:.3f} sampled; "
        f"pass@{found.k} {found.pass_at_k:.3f}{not_judged(found.error_rate)}"
        + "".join(
            f"; {name} ({size}): reward {found.sets[name]['reward']:.3f} greedy, "
            f"{found.sets[name]['reward_sampled']:.3f} sampled"
            for name, size in found.sizes.items()
        )
    )


def _went(run: Run, result: "TrainResult", seconds: float) -> list[tuple[str, str]]:
    pace = f"{result.rollouts_per_second:.0f} rollouts/s"
    took = f"{seconds:.0f} s with start, warm-up and evaluations"
    return [("run", f"{run_name(run)}: {result.steps} steps; {took}; {pace}"), *_learning(result)]


def _learning(result: "TrainResult") -> list[tuple[str, str]]:
    """How rewards on the held-out problems went."""
    of = problem_count(result.held_out, "held-out ")
    rows = [
        ("reward", result.reward_before, result.reward_after, f"greedy on {of}, mean"),
        ("", result.reward_sampled_before, result.reward_sampled_after, "sampled"),
        *(
            ("", by["reward_before"], by["reward_after"], f"greedy on {name} ({by['problems']})")
            for name, by in result.sets.items()
        ),
        ("pass rate", result.pass_rate_before, result.pass_rate_after, "greedy, share with reward 1"),
        ("", result.sampled_before, result.sampled_after, "sampled"),
    ]
    shown = [
        (name, f"{after:.3f} {what}" if before is None else f"{before:.3f} → {after:.3f} {what}")
        for name, before, after, what in rows
        if after is not None  # before: None where version 0 was evaluated on something else
    ]
    if result.error_rate_after:
        shown.append(
            ("not judged", f"{result.error_rate_after:.1%} of these completions: the figures are of the others")
        )
    return shown or [("reward", "not evaluated: no problems are held out")]


def _audits(metrics: Path) -> list[tuple[str, str]]:
    """How many of the leases that were drawn for audits had none, by the run's metrics, if any."""
    logged = [line.metrics for line in read_metrics(metrics)]
    scored, missed = (int(sum(each.get(f"audit/{name}", 0) for each in logged)) for name in ("leases", "missed"))
    why = "newer weights had come, or nobody else could score them"
    said = f"{scored} of {scored + missed} leases that were drawn; {missed} left out: {why}"
    return [("audits", said)] if missed else []


def _layout(run: Run) -> str:
    """Whose layout the run's model is in, and what makes a whole one of adapters."""
    if not run.config.policy.lora.rank:
        return "Hugging Face layout"
    return f"adapters, peft's layout; {_venv(f'rlvf export {shlex.quote(run_name(run))} --merge')} writes a whole model"


def _within(url: str) -> str:
    """A page without the address of its server, which may be another one the next time."""
    return urllib.parse.urlunsplit(urllib.parse.urlsplit(url)._replace(scheme="", netloc=""))


def _venv(command: str) -> str:
    """The shell command with the program's path, where the PATH has none or another one: relative below this folder."""
    words = command.split(" ")
    at = next(index for index, word in enumerate(words) if "=" not in word)
    beside, found = Path(sys.executable).parent / words[at], shutil.which(words[at])
    if beside.exists() and (found is None or not beside.samefile(found)):
        below = beside.is_relative_to(Path.cwd())
        words[at] = shlex.quote(os.path.relpath(beside) if below else str(beside))
    return " ".join(words)
