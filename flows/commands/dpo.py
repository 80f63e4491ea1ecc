"""`rlvf dpo`."""

from collections.abc import Callable

from flows.commands.command import Command
from flows.commands.on_examples import FIRST, add_example_options, train_on_examples
from flows.finetune_config import DpoConfig
from infra.interrupts import put_off

EXAMPLES = """
rlvf dpo --problems pairs.jsonl --policy Qwen/Qwen3-0.6B      columns prompt, chosen, rejected
rlvf dpo --problems pairs.jsonl --policy RUN --beta 0.3       from what rlvf sft has made
"""


def _flow() -> Callable[[DpoConfig, str | None], str]:
    with put_off():
        from flows.sft import dpo
    return dpo


COMMAND = Command(
    "dpo",
    "train a policy on pairs of completions, of which one is preferred",
    EXAMPLES,
    lambda command: add_example_options(command, DpoConfig),
    lambda given: train_on_examples(given, DpoConfig, _flow),
    (*FIRST, "beta"),
)
