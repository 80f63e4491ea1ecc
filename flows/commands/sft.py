"""`rlvf sft`."""

import argparse
import json

from flows.commands.command import Command
from flows.commands.on_examples import FIRST as EXAMPLE_OPTIONS
from flows.commands.on_examples import add_example_options, train_on_examples
from flows.commands.unused_up import say_unused_up
from flows.commands.workplace import in_workplace, prepare_workplace
from flows.finetune_config import SftConfig
from flows.options.reading import read_config
from flows.options.tree import changed_leaves
from flows.run.display import Display
from infra.interrupts import put_off
from infra.security.printable import printable

EXAMPLES = """
rlvf sft --problems demonstrations.jsonl --policy Qwen/Qwen3-0.6B    columns prompt and completion, or messages
rlvf sft --problems d.jsonl --policy Qwen/Qwen3-0.6B --policy.lora 16   LoRA adapters, merged at the end
rlvf sft --resume RUN                                  continue where that run stopped
rlvf sft --warm_up.steps 400                           the tiny policy's warm-up; the result is kept
"""
FIRST = (*EXAMPLE_OPTIONS, "warm_up.steps", "warm_up.batch")


def _options(command: argparse.ArgumentParser) -> None:
    add_example_options(command, SftConfig)


def refuse_unused(config: SftConfig) -> None:
    """Raise ValueError where something is given that is of demonstrations, and there are none."""
    used = ("problems", "warm_up", "policy", "cluster", "placement", "tracking")
    for path, _, value in changed_leaves(SftConfig(), config):
        if path == "policy.model":
            raise ValueError(f"policy.model {value!r}: name the demonstrations that it learns from: --problems FILE")
        if not path.startswith(used) or path.startswith("problems."):
            raise ValueError(
                f"{path} {value!r}: is of demonstrations, and none are named: give --problems FILE, or for the warm-up "
                "of the tiny policy --warm_up.steps and the like"
            )


def _run(given: argparse.Namespace) -> None:
    if given.resume is not None:
        train_on_examples(given, SftConfig)
        return
    config = read_config(SftConfig, file=given.config, overrides=given.overrides)
    if config.problems.path is not None:
        train_on_examples(given, SftConfig)
        return
    refuse_unused(config)
    say_unused_up(config.cluster)
    prepare_workplace(config.cluster)

    def work(_: Display) -> str:
        with put_off():
            from flows.sft import sft

        return sft(config)

    uri = in_workplace(config.cluster, config.placement, work)
    print(json.dumps({"policy": uri}) if given.json else printable(uri))


COMMAND = Command(
    "sft", "fine-tune a policy on demonstrations, or warm the tiny policy up", EXAMPLES, _options, _run, FIRST
)
