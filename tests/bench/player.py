"""A small policy that calls tools: a Qwen3 of about 4M parameters with fresh weights, a tokenizer of 4,096 pieces from
this project's own words, and a chat template that writes tools. It is shown games of `guess` until it plays them,
in calls that can be read: about the middle of what is left, then a word in place of a call once it is told "right".
"""

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rl.environments.interface import interface_of
from rl.model.prompting import Tool, prompt_tokens
from rl.model.turns import Turns
from rl.problems.played.guess import LARGEST
from tests.rl.saved import saved

PIECES, POSITIONS = 4096, 1024
END, PAD = "<|im_end|>", "<|endoftext|>"
OTHERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
GAMES, RATE = 8, 2e-3  # of a step
PROMPT = f"find the number from 1 to {LARGEST}."
Tokens = tuple[list[int], list[int]]  # of a game, and labels: -100 where they are not the policy's
CALL = '<tool_call>\n{{"name": "guess", "arguments": {{"number": {}}}}}\n</tool_call>'


def tokenizer_of(root: Path, template: str) -> PreTrainedTokenizerFast:
    """Byte-level pieces of what is written under ``root``, digits one by one as Qwen's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    added = [PAD, END, "<|im_start|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES - len(added) - len(OTHERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = sorted([*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("rl/**/*.py")])
    made.train_from_iterator((path.read_text(encoding="utf-8") for path in texts), trainer)
    made.add_special_tokens(added)
    made.add_tokens([AddedToken(text, normalized=False) for text in OTHERS])
    found = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=PAD, padding_side="left")  # type: ignore[no-untyped-call]
    found.chat_template = template
    return found


def model_of(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=PIECES,
            hidden_size=256,
            intermediate_size=768,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def game(chance: random.Random) -> Iterator[tuple[str, str]]:
    """What is said and what is observed, turn by turn: a number from the middle half of those that are left."""
    secret, low, high = chance.randint(1, LARGEST), 1, LARGEST
    while True:
        quarter = (high - low) // 4
        number = chance.randint(low + quarter, high - quarter)
        if number == secret:
            yield CALL.format(number), "right"
            yield "found it.", ""
            return
        low, high = (number + 1, high) if number < secret else (low, number - 1)
        yield CALL.format(number), "higher" if number < secret else "lower"


def episode(tokenizer: PreTrainedTokenizerFast, turns: Turns, tools: Sequence[Tool], chance: random.Random) -> Tokens:
    tokens = prompt_tokens(tokenizer, PROMPT, None, tools)
    labels = [-100] * len(tokens)
    for said, seen in game(chance):
        own = [*tokenizer(said, add_special_tokens=False)["input_ids"], turns.end]
        behind = turns.observed([seen], closed=True) if seen else []
        tokens += [*own, *behind]
        labels += [*own, *([-100] * len(behind))]
    return tokens, labels


def player(folder: Path, root: Path, template: str, cls: type, steps: int, seed: int = 0) -> str:
    """Make it in this folder, for a class such as `guess`."""
    tokenizer = tokenizer_of(root, template)
    model, chance = model_of(tokenizer, seed), random.Random(seed)
    turns, tools = Turns.of(tokenizer, {tokenizer.eos_token_id}, tools=True), interface_of(cls).tools
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        games = [episode(tokenizer, turns, tools, chance) for _ in range(GAMES)]
        longest = max(len(tokens) for tokens, _ in games)
        ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in games])
        labels = torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in games])
        loss = model(input_ids=ids, labels=labels).loss  # what is padded stands behind, where nothing is learned
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if (step + 1) % 25 == 0:
            print(f"warm-up {step + 1} of {steps}: loss {loss.item():.3f}", file=sys.stderr, flush=True)
    return saved(folder, model, tokenizer)
