"""The command `rlvf`. Results go to stdout, everything else to stderr; a user's mistake is one line and exit code 2."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from flows.config import EvalConfig, SftConfig, TrainConfig
from flows.display import Display
from flows.options import OneLineParser, add_options, read_config
from flows.preflight import check_model, check_tracking
from flows.runs import Run, new_run, resume_run
from flows.summary import run_name, summary
from flows.workplace import workplace
from infra.checkpoints import is_run, resolve_run
from infra.cluster import ClusterConfig
from infra.placement import PlacementConfig
from infra.services import prefect_server, rlvf_home
from tasks.problem_set import GRAMMAR, open_problems, read_problems

if TYPE_CHECKING:
    from flows.training import TrainResult
    from tasks.evaluate import Evaluation

T = TypeVar("T")

EXAMPLES = {
    "train": """examples:
  rlvf train                                             the tiny policy on problems from the grammar
  rlvf train --problems problems.csv --steps 100         your problems: python_expression,natural_language
  rlvf train --config my.yaml --loss.name grpo           a YAML file, dotted overrides on top
  rlvf train --resume 20260101-120000-tiny               go on exactly where that run stopped""",
    "sft": """example:
  rlvf sft --warm_up.steps 400                           warm the tiny policy up; the result is kept""",
    "eval": """examples:
  rlvf eval --policy 20260101-120000-tiny --problems problems.csv --samples 8
  rlvf eval --policy Qwen/Qwen3-0.6B --problems 's3://bucket/*.csv.gz'""",
}


def parser() -> OneLineParser:
    """The command line."""
    top = OneLineParser(prog="rlvf", description="Reinforcement learning with verifiable reward on your own machines.")
    commands = top.add_subparsers(dest="command", required=True, metavar="train|sft|eval")
    described: dict[str, tuple[type[BaseModel], str]] = {
        "train": (TrainConfig, "train a policy by reinforcement learning"),
        "sft": (SftConfig, "warm the tiny policy up by supervised learning"),
        "eval": (EvalConfig, "evaluate a run's policy, or any model, on a set of problems"),
    }
    for name, (model, text) in described.items():
        command = commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=EXAMPLES[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == "train":
            command.add_argument("--resume", metavar="RUN", help="go on with this run: its URI or its folder's name")
        command.add_argument("--json", action="store_true", help="print one JSON object with the figures")
        add_options(command, model)
    return top


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; exits with 0, 1 (it failed), 2 (a mistake in what was asked), or 130 (interrupted)."""
    top = parser()
    given = top.parse_args(argv)
    commands: dict[str, Callable[[argparse.Namespace], None]] = {"train": _train, "sft": _sft, "eval": _eval}
    signal.signal(signal.SIGTERM, _interrupt)  # an orderly end, as for Ctrl-C
    try:
        commands[given.command](given)
    except ValueError as error:
        if os.environ.get("RLVF_TRACEBACK"):
            raise
        top.error(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, RuntimeError) as error:
        if os.environ.get("RLVF_TRACEBACK"):
            raise
        print(f"rlvf: {str(error) or type(error).__name__} (set RLVF_TRACEBACK=1 for the whole story)", file=sys.stderr)
        sys.exit(1)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _in_workplace(cluster: ClusterConfig, placement: PlacementConfig, work: Callable[[Display], T]) -> T:
    """Do the work with a Prefect server and a cluster around it; both start at the same time."""
    # before prefect is imported; what a person wants to see comes from the display, and what went wrong from `main`
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR" if os.environ.get("RLVF_TRACEBACK") else "CRITICAL")
    with ExitStack() as stack:
        display = stack.enter_context(Display())
        server = stack.enter_context(prefect_server(rlvf_home(), display.say))
        display.stage("start")
        stack.enter_context(workplace(cluster, placement, display))
        server.wait()
        return work(display)


def _train(given: argparse.Namespace) -> None:
    runs = str(rlvf_home() / "runs")
    if given.resume is not None:
        run = resume_run(given.resume, runs, given.config, given.overrides)
    else:
        run = new_run(read_config(TrainConfig, file=given.config, overrides=given.overrides), runs)
        check_tracking(run.config.tracking.uri)  # a resumed run goes on without, and catches up later
    open_problems(run.config.problems, run.config.held_out, run.config.seed)
    check_model(run.config.policy.model)
    began = time.monotonic()
    try:
        result = _in_workplace(run.config.cluster, run.config.placement, lambda display: _run_train(run, display))
    except ValueError:
        raise  # a mistake in what was asked: going on would meet it again
    except BaseException:
        if is_run(run.uri):
            print(f"rlvf: stopped; go on with: rlvf train --resume {run_name(run)}", file=sys.stderr)
        raise
    seconds = time.monotonic() - began
    figures = asdict(result)
    if given.json:
        keys = ("run", "steps", "pass_rate_before", "pass_rate_after", "rollouts_per_second")
        print(json.dumps({**{key: figures[key] for key in keys}, "seconds": seconds, "stages": figures["stages"]}))
    else:
        print(summary(run, result, seconds))


def _run_train(run: Run, display: Display) -> "TrainResult":
    from flows.train import train  # with torch and prefect: not before the command line is known to be good

    display.say(f"run {run_name(run)}")
    return train(run.config.model_copy(update={"run": run.uri}), run.uri if run.resumed else None)


def _sft(given: argparse.Namespace) -> None:
    config = read_config(SftConfig, file=given.config, overrides=given.overrides)

    def work(_: Display) -> str:
        from flows.sft import sft

        return sft(config)

    uri = _in_workplace(config.cluster, config.placement, work)
    print(json.dumps({"policy": uri}) if given.json else uri)


def _eval(given: argparse.Namespace) -> None:
    config = read_config(EvalConfig, file=given.config, overrides=given.overrides)
    if config.held_out:
        open_problems(config.problems, config.held_out, config.seed)
    elif config.problems != GRAMMAR:
        read_problems(config.problems)
    if not is_run(resolve_run(config.policy.model, str(rlvf_home() / "runs"))):
        check_model(config.policy.model, "a run or ")

    def work(_: Display) -> "Evaluation":
        from flows.evaluate import evaluate_policy

        return evaluate_policy(config)

    found = _in_workplace(config.cluster, config.placement, work)
    if given.json:
        figures = {"problems": found.problems, "greedy": found.greedy, "sampled": found.sampled}
        print(json.dumps({**figures, "pass_at_k": found.pass_at_k, "k": found.k, "version": found.step}))
    else:
        print(
            f"{found.problems} problems, policy v{found.step}: pass@1 {found.greedy:.3f} greedy, {found.sampled:.3f} "
            f"sampled; pass@{found.k} {found.pass_at_k:.3f}"
        )
