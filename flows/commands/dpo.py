"""`rlvf dpo`."""

from flows.commands.command import Command
from flows.commands.on_examples import FIRST, add_example_options, train_on_examples
from flows.finetune_config import DpoConfig

EXAMPLES = """
rlvf dpo --problems pairs.jsonl --policy Qwen/Qwen3-0.6B      columns prompt, chosen, rejected
rlvf dpo --problems pairs.jsonl --policy RUN --beta 0.3       from the model of a run of rlvf sft
"""

COMMAND = Command(
    "dpo",
    "train a policy on preference pairs: a chosen and a rejected completion",
    EXAMPLES,
    lambda command: add_example_options(command, DpoConfig),
    lambda given: train_on_examples(given, DpoConfig),
    (*FIRST, "beta"),
)
