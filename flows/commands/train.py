"""`rlvf train`."""

import argparse
import json
import shlex
import time
from contextlib import ExitStack
from dataclasses import asdict

from flows.commands.command import Command, say
from flows.commands.unused_up import say_unused_up
from flows.commands.workplace import in_workplace, prepare_workplace
from flows.config import TrainConfig
from flows.options.reading import add_options, read_config
from flows.report.result import TrainResult, finished
from flows.report.summary import run_name, summary
from flows.run.display import Display
from flows.run.opened import Opened
from flows.run.plans import problems_to_check
from flows.start.finetunes import with_made_model
from flows.start.preflight import (
    check_configuration_here,
    check_engine_here,
    check_environment_here,
    check_model,
    check_place,
    check_tracking,
    check_verifiers_here,
)
from flows.start.references import check_reference, with_named_reference
from flows.start.resume import resume_run
from flows.start.runs import Run, new_run, without_secrets
from flows.start.trust import refuse_odd_files, trusted
from infra.cluster.placement import PlacementError
from infra.errors import worker_of
from infra.home import runs_uri
from infra.interrupts import put_off
from infra.runs.checkpoints import NotARun, is_run
from infra.runs.remains import CheckpointsLostError
from infra.security.printable import printable
from infra.storage.fence import LockLostError
from infra.storage.lock import held
from infra.storage.usable import named_storage_errors
from rl.judging import BrokenVerifierError
from rl.lora_config import OtherBaseError
from tasks.calls.base import BaseLost

EXAMPLES = """
rlvf train                                             the tiny policy on arithmetic, made in code
rlvf train --problems problems.csv --steps 100         your problems: CSV, JSON Lines or Parquet
rlvf train --problems q.jsonl --verifier my_reward.py:reward   your own reward
rlvf train --environment guess.py:Guess --problems q.jsonl     your own environment: several turns, with tools
rlvf train --algorithm dapo                            or ppo, grpo, gspo, …: docs/algorithms.md, or --help all
rlvf train --config my.yaml --steps 50                 a YAML file, with dotted overrides
rlvf train --policy Qwen/Qwen3-0.6B --policy.lora 16   LoRA adapters on a frozen model
rlvf train --resume 20260101-120000-tiny               continue exactly where that run stopped
"""
FIRST = (
    *(
        "problems",
        "verifier",
        "policy",
        "policy.lora",
        "steps",
        "held_out",
        "batch.samples",
        "sampling.max_tokens",
        "optimizer.lr",
    ),
    *("staleness", "run", "resume", "config", "json"),
)
DONE_WITHOUT_STEPS = {"evals", "tracking", "checkpoint"}  # options that a run does something for after its last step
RESULTS = tuple(
    f"{what}_{when}"
    for what in ("reward", "reward_sampled", "pass_rate", "sampled", "error_rate")
    for when in ("before", "after")
)


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--resume", metavar="RUN", help="resume this run: its URI or its folder's name")
    command.add_argument(
        "--trust", action="store_true", help="with --resume: use the code and the addresses that the run brings with it"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object with the figures")
    add_options(command, TrainConfig)


def _run(given: argparse.Namespace) -> None:
    runs = runs_uri()
    if given.resume is not None:
        with named_storage_errors(given.resume if "://" in given.resume else runs):
            try:
                run = resume_run(given.resume, runs, given.config, given.overrides)
            except NotARun:
                say_unused_up()
                raise
            if (result := _finished(run)) is not None:
                more = f"rlvf train --resume {shlex.quote(run_name(run))} --steps N"
                say(f"{run_name(run)} has made all of its {run.steps} steps; more: {more}")
                _show(given, run, result, result.seconds)
                return
        say_unused_up(run.config.cluster)
        prepare_workplace(run.config.cluster)
        trusted(run, given.trust, ask=True)
    else:
        config = read_config(TrainConfig, file=given.config, overrides=given.overrides)
        say_unused_up(config.cluster)
        prepare_workplace(config.cluster)
        with named_storage_errors(config.run if config.run and "://" in config.run else runs):
            run = new_run(with_named_reference(with_made_model(config, runs), runs), runs)
        refuse_odd_files(run.uri)  # a folder may be there before its run is
        check_place(run.uri)
        check_tracking(run.config.tracking)  # a resumed run goes on without, and catches up later
    opened = Opened.of(run)
    check_verifiers_here(opened.problems, run.config.cluster)
    interface = check_environment_here(opened.problems, run.config.cluster)
    check_engine_here(run.config.policy, run.config.cluster)
    if not run.resumed or run.config.sync.base == "public":  # a run holds all else that it goes on with
        check_model(run.config.policy.model, runs)
    if not run.resumed:
        check_reference(run.config, runs)
        check_configuration_here(run.config, problems_to_check(opened.problems, opened.plans), interface)
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            if run.resumed:  # before anything starts
                stack.enter_context(held(run.uri, say))
            result = in_workplace(run.config.cluster, run.config.placement, lambda display: _train(run, display))
    except BaseException as error:
        if not _in_vain(error) and is_run(run.uri):
            by = f" by what failed on {worker}" if (worker := worker_of(error)) is not None else ""
            say(f"stopped{by}; {_first(error)}go on with: rlvf train --resume {shlex.quote(run_name(run))}")
        raise
    _show(given, run, result, time.monotonic() - began)


def _finished(run: Run) -> TrainResult | None:
    """The result of a run with nothing left to do: no step, no new evaluation or other record."""
    changed = {line.partition(":")[0].partition(".")[0] for line in run.changes()}
    return None if changed & DONE_WITHOUT_STEPS else finished(run.uri, run.steps, TrainResult)


def _show(given: argparse.Namespace, run: Run, result: TrainResult, seconds: float) -> None:
    figures = asdict(result)
    if given.json:
        keys = ("run", "steps", "held_out", *RESULTS, "sets", "rollouts_per_second")
        print(json.dumps({**{key: figures[key] for key in keys}, "seconds": seconds, "stages": figures["stages"]}))
    else:
        print(printable(summary(run, result, seconds), lines=True))


def _first(error: BaseException) -> str:
    """What has to be done before the run can go on."""
    if isinstance(error, BrokenVerifierError):
        return "when the verifier works again, "
    return "when that model is restored, " if isinstance(error, BaseLost | OtherBaseError) else ""


def _in_vain(error: BaseException) -> bool:
    """Whether resuming the run would raise this again (a user's mistake, a run without a whole checkpoint), or another
    process has the run. The error or the lack of a worker is the machines' fault, which may pass, and a verifier is
    read anew by a resume."""
    if isinstance(error, CheckpointsLostError):
        return True
    if worker_of(error) is not None or isinstance(error, PlacementError | BrokenVerifierError):
        return False
    return isinstance(error, ValueError | LockLostError)


def _train(run: Run, display: Display) -> TrainResult:
    display.say(f"run {run_name(run)}")
    with put_off():
        from flows.train import train  # with torch and prefect: not before the command line is known to be good

    # Prefect keeps the parameters of a flow
    return train(without_secrets(run.config.model_copy(update={"run": run.uri})), run.uri if run.resumed else None)


COMMAND = Command("train", "train a policy by reinforcement learning", EXAMPLES, _options, _run, FIRST)
