"""`rlvf reward-model`."""

from flows.commands.command import Command
from flows.commands.on_examples import FIRST, add_example_options, train_on_examples
from flows.finetune_config import RewardModelConfig

EXAMPLES = """
rlvf reward-model --problems pairs.jsonl --policy Qwen/Qwen3-0.6B    columns prompt, chosen, rejected
rlvf train --problems q.jsonl --verifier reward-model:RUN            use it as the verifier
"""

COMMAND = Command(
    "reward-model",
    "train a reward model on preference pairs: a chosen and a rejected completion",
    EXAMPLES,
    lambda command: add_example_options(command, RewardModelConfig),
    lambda given: train_on_examples(given, RewardModelConfig),
    tuple(name for name in FIRST if name != "policy.lora"),  # which it refuses
)
