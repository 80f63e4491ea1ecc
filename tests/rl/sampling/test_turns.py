"""Where a completion ends."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from rl.config import SamplingConfig
from rl.loading.policy import load_policy
from rl.model.policy import UnknownModelError, read_weights, save_policy
from rl.model.tiny import build_tokenizer
from rl.records import Problem
from rl.sampling.sampler import sample
from tests.rl.saved import CPU, TEMPLATE, TOKENS, Build, saved


def test_the_models_own_end_tokens_are_kept_and_saved(
    tmp_path: Path, build_small: Build, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = build_small("llama")
    first = tmp_path / "first"
    saved(first, model, tokenizer)
    model.generation_config.eos_token_id = [1, 6]
    model.generation_config.temperature = 0.7  # which transformers refuses to save without do_sample
    model.generation_config.to_json_file(first / "generation_config.json")
    policy = load_policy(str(first), CPU)
    assert policy.ends == (2, 1, 6)
    save_policy(policy, tmp_path / "second")
    assert load_policy(str(tmp_path / "second"), CPU).ends == (2, 1, 6)
    given = load_policy(str(tmp_path / "second"), CPU, weights=read_weights(tmp_path / "second"))  # as generators do
    assert given.ends == (2, 1, 6)


def test_a_model_that_nobody_says_the_end_of_is_refused(tmp_path: Path, build_small: Build) -> None:
    tokenizer = build_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(UnknownModelError, match="end-of-sequence"):
        load_policy(saved(tmp_path, build_small("llama", eos_token_id=None), tokenizer), CPU)
    policy = load_policy(saved(tmp_path, build_small("llama", eos_token_id=[7, 9]), tokenizer), CPU)
    assert (policy.ends, policy.end) == ((7, 9), 7)


TURNS = "{{% for message in messages %}}{}{{% endfor %}}{{% if add_generation_prompt %}}{}{{% endif %}}"
CHATML = TURNS.format(
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n", "<|im_start|>assistant\n"
)
LLAMA_3 = TURNS.format(
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
)
LLAMA_2 = (
    "{% for message in messages %}{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]"
    "{% elif message['role'] == 'assistant' %} {{ message['content'] }} <end>{% else %}{{ raise_exception('no') }}"
    "{% endif %}{% endfor %}"
)
BETWEEN = (  # closed only where somebody speaks next
    "{% for message in messages %}<|im_start|>{{ message['content'] }}{% if not loop.last %}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_end|>\n<|im_start|>{% endif %}"
)
GLM = TURNS.format("<|{{ message['role'] }}|>\n{{ message['content'] }}", "<|assistant|>\n")
QWEN_3 = (  # of an assistant's last turn it writes what was thought, too
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['role'] == 'assistant' %}"
    "<think>\n\n</think>\n\n{{ message['content'].strip('\n') }}{% else %}{{ message['content'] }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|user|>"]


@pytest.mark.parametrize(
    ("template", "end"),
    [
        pytest.param(CHATML, "<|im_end|>", id="a line break behind it"),
        pytest.param(LLAMA_3, "<|eot_id|>", id="nothing behind it"),
        pytest.param(QWEN_3, "<|im_end|>", id="thinking before the answer"),
        pytest.param(BETWEEN, "<|im_end|>", id="between turns only"),
        pytest.param(GLM, "<|user|>", id="by who speaks next"),
        pytest.param(LLAMA_2, None, id="the tokenizer's own, behind a space"),
        pytest.param(TEMPLATE, None, id="a line break alone"),
        pytest.param("{{ messages[0]['content'] }}", None, id="no assistant's turn"),
        pytest.param("{{ raise_exception('one message') if messages | length > 1 }}", None, id="no second message"),
        pytest.param(None, None, id="no template"),
    ],
)
def test_a_completion_ends_where_the_chat_template_ends_a_turn(
    tmp_path: Path, build_small: Build, template: str | None, end: str | None
) -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = template
    own = tokenizer.eos_token_id
    model = build_small("llama", vocab_size=len(tokenizer))
    policy = load_policy(saved(tmp_path, model, tokenizer), CPU)
    assert policy.ends == (own, *([tokenizer.convert_tokens_to_ids(end)] if end else []))
    assert policy.end == own
    assert policy.unnamed_end == end
    if end:  # where the model's own settings name it, there is nothing to say
        model.generation_config.eos_token_id = [policy.ends[1], own]
        model.generation_config.to_json_file(tmp_path / "generation_config.json")
        named = load_policy(str(tmp_path), CPU)
        assert (set(named.ends), named.unnamed_end) == (set(policy.ends), None)


def test_what_is_sampled_ends_with_the_turn_and_is_judged_without_it(tmp_path: Path, build_small: Build) -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = CHATML
    model = build_small("gpt2", vocab_size=len(tokenizer))
    end, five = tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.convert_tokens_to_ids("5")
    bias = torch.full((len(tokenizer),), -100.0)
    bias[end] = bias[five] = 100.0  # which of the two is as good as a coin
    policy = load_policy(saved(tmp_path, model, tokenizer), CPU)
    policy.model.lm_head.bias = torch.nn.Parameter(bias)
    problems = [Problem("add 1 and 2.", "1 + 2", "a:1")]
    found = sample(policy, 0, problems, SamplingConfig(max_tokens=40), samples=8, seed=0, step=0, groups=[0])
    assert found.ended.all()
    assert all(set(text) <= {"5"} for text in found.texts[0])


def test_what_is_saved_ends_with_the_turn_for_whoever_loads_it_with_transformers(
    tmp_path: Path, build_small: Build
) -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = CHATML
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model = build_small("gpt2", vocab_size=len(tokenizer))
    with torch.no_grad():  # whatever comes before, the turn is over
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1.0)
        model.transformer.wte.weight[end] = 1.0
    save_policy(load_policy(saved(tmp_path / "base", model, tokenizer), CPU), tmp_path / "result")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "result")
    assert loaded.generation_config.eos_token_id == [tokenizer.eos_token_id, end]
    said = loaded.generate(TOKENS, max_new_tokens=8, do_sample=False)[0, TOKENS.shape[1] :]
    assert said.tolist() == [end]
    assert load_policy(str(tmp_path / "result"), CPU).unnamed_end is None
