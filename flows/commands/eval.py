"""`rlvf eval`."""

import argparse
import json
from typing import TYPE_CHECKING

from flows.commands.command import Command
from flows.commands.unused_up import say_unused_up
from flows.commands.workplace import in_workplace, prepare_workplace
from flows.config import EvalConfig
from flows.options.reading import add_options, read_config
from flows.report.summary import evaluation_outcome
from flows.run.display import Display
from flows.start.as_trained import asked_evaluation
from flows.start.finetunes import with_made_model
from flows.start.preflight import check_model
from flows.start.runs import existing_run, newest_weights, with_secrets, without_secrets
from infra.home import runs_uri
from infra.interrupts import put_off
from infra.runs.checkpoints import is_run
from infra.storage.usable import named_storage_errors

if TYPE_CHECKING:
    from tasks.evaluate import Evaluation

EXAMPLES = """
rlvf eval --policy 20260101-120000-tiny                as it was trained, on what was kept out of training
rlvf eval --policy 20260101-120000-tiny --problems test.csv --samples 16
rlvf eval --policy newest --again false                the newest run, unless its version was evaluated before
rlvf eval --policy Qwen/Qwen3-0.6B --problems 's3://bucket/*.csv.gz'
"""
FIRST = (
    "policy",
    "problems",
    "verifier",
    "environment",
    "samples",
    "held_out",
    "sampling.max_tokens",
    "config",
    "json",
)


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust", action="store_true", help="use the code and the addresses that a run brings with it"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object with the figures")
    add_options(command, EvalConfig)


def _run(given: argparse.Namespace) -> None:
    config = read_config(EvalConfig, file=given.config, overrides=given.overrides, defaults=False)
    say_unused_up(config.cluster)
    prepare_workplace(config.cluster)
    model = config.policy.model
    with named_storage_errors(model if "://" in model else runs_uri()):
        config = with_made_model(config, runs_uri())
        model = config.policy.model
        asked_evaluation(with_secrets(config), given.trust, ask=True)
        uri = existing_run(model, runs_uri())
        if is_one := is_run(uri):
            newest_weights(uri)
    if not is_one:
        check_model(config.policy.model, runs_uri(), also_run=True)

    def work(_: Display) -> "Evaluation":
        with put_off():
            from flows.evaluate import evaluate_policy

        return evaluate_policy(without_secrets(config))  # Prefect keeps the parameters of a flow

    found = in_workplace(config.cluster, config.placement, work)
    if given.json:
        figures = {"problems": found.problems, "reward": found.reward, "reward_sampled": found.reward_sampled}
        figures |= {"greedy": found.greedy, "sampled": found.sampled}
        figures |= {"pass_at_k": found.pass_at_k, "k": found.k, "error_rate": found.error_rate, "version": found.step}
        sets = {name: {"problems": size, **found.sets[name]} for name, size in found.sizes.items()}
        print(json.dumps({**figures, "sets": sets}))
    else:
        print(evaluation_outcome(found))


COMMAND = Command(
    "eval", "evaluate a run's policy, or any model, on a set of problems", EXAMPLES, _options, _run, FIRST
)
