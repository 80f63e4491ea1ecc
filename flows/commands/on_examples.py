"""What the commands that train on examples share: `rlvf sft`, `rlvf dpo`, `rlvf reward-model`."""

import argparse
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.commands.command import say
from flows.commands.unused_up import say_unused_up
from flows.commands.workplace import in_workplace, prepare_workplace
from flows.finetune_config import FinetuneConfig, RewardModelConfig
from flows.options.reading import add_options, read_config
from flows.report.result import FinetuneResult, finished
from flows.report.summary import finetune_outcome
from flows.run.display import Display
from flows.start.finetunes import is_finetune, new_finetune, resumed_finetune, with_made_model
from flows.start.preflight import check_model, check_place, check_tracking
from flows.start.runs import without_secrets
from flows.start.trust import refuse_odd_files, trusted
from infra.home import runs_uri
from infra.interrupts import put_off
from infra.runs.record import RESULT
from infra.security.printable import printable
from infra.storage import place
from infra.storage.usable import named_storage_errors
from tasks.sets.example_set import open_examples

FIRST = (
    *("problems", "policy", "policy.lora", "steps", "batch", "held_out", "max_tokens", "optimizer.lr", "run", "resume"),
    *("config", "json"),
)


def add_example_options(command: argparse.ArgumentParser, kind: type[FinetuneConfig]) -> None:
    """The options of such a command."""
    command.add_argument("--resume", metavar="RUN", help="resume this run: its URI or its folder's name")
    command.add_argument(
        "--trust", action="store_true", help="with --resume: use the addresses and the files that the run names"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object with the figures")
    add_options(command, kind)


def train_on_examples(given: argparse.Namespace, kind: type[FinetuneConfig]) -> None:
    """Run the flow, which is imported when all that was given is known to be good, and print what it has made."""
    runs = runs_uri()
    with named_storage_errors(given.resume if given.resume is not None and "://" in given.resume else runs):
        if given.resume is not None:
            run = resumed_finetune(
                kind,
                given.resume,
                runs,
                lambda base: read_config(kind, file=given.config, overrides=given.overrides, base=base),
            )
        else:
            asked = with_made_model(read_config(kind, file=given.config, overrides=given.overrides), runs)
            if asked.problems.path is not None:
                check_model(asked.policy.model, runs)
            run = new_finetune(asked, runs)
    config = run.config
    if run.resumed and (result := finished(run.uri, config.steps, FinetuneResult)) is not None:
        more = f"rlvf {kind.method} --resume {shlex.quote(run.name)} --steps N"
        say(f"{run.name} has made all of its {result.steps} steps; more: {more}")
        _show(given, kind, run.name, asdict(result))
        return
    say_unused_up(config.cluster)
    prepare_workplace(config.cluster)
    if run.resumed:
        trusted(run, given.trust, ask=True)
    else:
        refuse_odd_files(run.uri)  # a folder may be there before its run is
    open_examples(config.problems, config.held_out, plain=isinstance(config, RewardModelConfig))
    if not run.resumed:
        check_tracking(config.tracking)
        check_place(run.uri)

    def work(display: Display) -> str:
        display.say(f"run {run.name}")
        named = (config if run.resumed else asked).model_copy(update={"run": run.uri})  # the flow says what it chooses
        with put_off():
            from flows.sft import dpo, reward_model, sft
        of_kind: Mapping[str, Callable[[Any, str | None], str]] = {"sft": sft, "dpo": dpo, "reward-model": reward_model}
        return of_kind[kind.method](without_secrets(named), run.uri if run.resumed else None)

    try:
        in_workplace(config.cluster, config.placement, work)
    except BaseException as error:
        if is_finetune(run.uri) and not isinstance(error, ValueError):
            say(f"stopped; go on with: rlvf {kind.method} --resume {shlex.quote(run.name)}")
        raise
    _show(given, kind, run.name, json.loads(place.read_text(place.join(run.uri, RESULT), 2**20)))


def _show(given: argparse.Namespace, kind: type[FinetuneConfig], name: str, figures: Mapping[str, Any]) -> None:
    say(finetune_outcome(kind.method, name, figures))
    if figures.get("report") and Path(figures["report"]).exists():
        say(f"report: {figures['report']}")
    if given.json:
        print(json.dumps({name: figures[name] for name in ("run", "policy", "steps", "held_out", "before", "after")}))
    else:
        print(printable(str(place.local_path(figures["policy"]) or figures["policy"])))
