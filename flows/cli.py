"""The command `rlvf`. Results go to stdout, everything else to stderr; a user's mistake is one line and exit code 2."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from types import FrameType
from typing import Any

from flows.config import EvalConfig, SftConfig, TrainConfig
from flows.display import Display
from flows.options import OneLineParser, add_options, read_config
from flows.runs import Run, new_run, resume_run
from infra.cluster import ClusterConfig
from infra.placement import PlacementConfig
from infra.services import prefect_server, rlvf_home

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
    described = {
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
    except RuntimeError as error:
        if os.environ.get("RLVF_TRACEBACK"):
            raise
        print(f"rlvf: {error} (set RLVF_TRACEBACK=1 for the whole story)", file=sys.stderr)
        sys.exit(1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _in_workplace(
    cluster: ClusterConfig, placement: PlacementConfig, policy: str, work: Callable[[Display], Any]
) -> Any:
    """Do the work with a Prefect server and a cluster around it; both start at the same time."""
    # before prefect is imported: what a person wants to see comes from the display
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    home = rlvf_home()
    with ExitStack() as stack:
        display = stack.enter_context(Display())
        display.stage("start")
        server = stack.enter_context(prefect_server(home, display.say))
        from flows.workplace import workplace

        stack.enter_context(workplace(cluster, placement, display))
        server.wait()
        return work(display)


def _train(given: argparse.Namespace) -> None:
    runs = str(rlvf_home() / "runs")
    if given.resume is not None:
        run = resume_run(given.resume, runs, given.config, given.overrides)
    else:
        run = new_run(read_config(TrainConfig, file=given.config, overrides=given.overrides), runs)
    config = run.config
    _check_problems(config.problems, config.held_out, config.seed)
    _check_model(config.policy.model)
    started: list[str] = []

    def work(display: Display) -> Any:
        from flows.train import train

        display.say(f"run {run.name}")
        started.append(run.uri)
        return train(config, run.uri if run.resumed else None)

    try:
        result = _in_workplace(config.cluster, config.placement, config.policy.model, work)
    except BaseException:
        if started:
            print(f"go on with: rlvf train --resume {run.name}", file=sys.stderr)
        raise


