import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import processors
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rl.config import PolicyConfig, SamplingConfig
from rl.head import head_logits, hidden_states
from rl.policy import (
    Policy,
    UnknownModelError,
    choose_device,
    choose_dtype,
    load_policy,
    read_weights,
    save_policy,
)
from rl.records import Briefing, Problem
from rl.sampler import sample
from rl.tiny import build_tokenizer
from rl.verifiers.arithmetic import BRIEFING

Build = Callable[..., PreTrainedModel]

CPU = PolicyConfig(device="cpu")
TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
TOKENS = torch.tensor([[5, 90, 300, 17, 44]])


def saved(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return head_logits(model, hidden_states(model, input_ids=TOKENS, use_cache=False))


def test_a_model_of_numbers_that_are_none_is_refused(
    tmp_path: Path, build_small: Build, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = build_small("llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(UnknownModelError, match="logits are not finite"):
        load_policy(saved(tmp_path, model, tokenizer), CPU)


def test_neither_pickles_nor_code_of_a_folder_are_run(
    tmp_path: Path, build_small: Build, tokenizer: PreTrainedTokenizerBase
) -> None:
    path = saved(tmp_path, build_small("qwen3"), tokenizer)
    ran = tmp_path / "ran"
    (tmp_path / "theirs.py").write_text(f"open({str(ran)!r}, 'w')\nclass Theirs: pass\n")
    settings = {name: json.loads((tmp_path / name).read_text()) for name in ("config.json", "tokenizer_config.json")}
    theirs = {
        "AutoConfig": "theirs.Theirs",
        "AutoModelForCausalLM": "theirs.Theirs",
        "AutoTokenizer": ["theirs.Theirs"] * 2,
    }
    for name, value in settings.items():
        (tmp_path / name).write_text(json.dumps({**value, "auto_map": theirs}))
    load_policy(path, CPU)  # of a kind that transformers has code for: theirs is left alone
    (tmp_path / "config.json").write_text(
        json.dumps({**settings["config.json"], "model_type": "theirs", "auto_map": theirs})
    )
    with pytest.raises(
        UnknownModelError, match=r"cannot be loaded: it needs code of its own, which is never run"
    ) as one:
        load_policy(path, CPU)
    assert "\n" not in str(one.value)
    for name, value in settings.items():
        (tmp_path / name).write_text(json.dumps(value))

    class Bomb:
        def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
            return ran.touch, ()

    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    load_policy(path, CPU)  # beside weights that can be read
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UnknownModelError, match=r"pickled weights \(pytorch_model.bin\) are never read") as one:
        load_policy(path, CPU)
    assert "\n" not in str(one.value)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
def test_a_folder_that_transformers_wrote_is_loaded(
    name: str, tmp_path: Path, build_small: Build, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = build_small(name)
    policy = load_policy(saved(tmp_path, model, tokenizer), CPU)
    with torch.no_grad():
        torch.testing.assert_close(logits(policy.model), model(TOKENS).logits)
    assert policy.end == tokenizer.eos_token_id
    assert policy.dtype == torch.float32
    assert not policy.model.training


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
def test_what_save_policy_wrote_is_loaded_by_transformers_and_by_us(
    name: str, tmp_path: Path, make_policy: Callable[..., Policy]
) -> None:
    policy = make_policy(name)
    save_policy(policy, tmp_path)
    with torch.no_grad():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(TOKENS).logits, policy.model(TOKENS).logits)
    again = load_policy(str(tmp_path), CPU)
    assert torch.equal(logits(again.model), logits(policy.model))
    assert again.prompt_tokens("add 3 and 4.") == policy.prompt_tokens("add 3 and 4.")


def test_weights_are_saved_in_the_dtype_asked_for(tmp_path: Path, make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    save_policy(policy, tmp_path, torch.bfloat16)
    loaded = load_policy(str(tmp_path), CPU).model.state_dict()
    for name, value in policy.model.state_dict().items():
        assert torch.equal(loaded[name], value.bfloat16().float())
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"  # which others load it in


# -- the prompt


def test_the_bare_form_is_the_problem_and_a_line_break(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    assert policy.tokenizer.decode(policy.prompt_tokens("add 3 and 4.")) == "add 3 and 4.\n"


def test_the_chat_template_is_used_where_the_model_has_one(tmp_path: Path, build_small: Build) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    policy = load_policy(saved(tmp_path, build_small("llama"), tokenizer), CPU)
    lines = policy.tokenizer.decode(policy.prompt_tokens("add 3 and 4.", BRIEFING)).split("\n")
    said = [
        f"[system] {BRIEFING.system}",
        f"[user] {BRIEFING.examples[0][0]}",
        f"[assistant] {BRIEFING.examples[0][1]}",
        "[user] add 3 and 4.",
    ]
    assert lines == [line.lower() for line in [*said, "[assistant] "]]


def test_a_template_without_a_system_role_gets_its_words_in_the_first_turn(tmp_path: Path, build_small: Build) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE
    )
    policy = load_policy(saved(tmp_path, build_small("llama"), tokenizer), CPU)
    said = policy.tokenizer.decode(policy.prompt_tokens("add 3 and 4.", BRIEFING))
    assert said.startswith(
        f"[user] {BRIEFING.system}\n\n{BRIEFING.examples[0][0]}\n[assistant] {BRIEFING.examples[0][1]}".lower()
    )
    assert said.endswith("[user] add 3 and 4.\n[assistant] ")


def test_without_a_briefing_a_chat_model_gets_the_problem_alone(tmp_path: Path, build_small: Build) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    policy = load_policy(saved(tmp_path, build_small("llama"), tokenizer), CPU)
    assert policy.tokenizer.decode(policy.prompt_tokens("add 3 and 4.")) == "[user] add 3 and 4.\n[assistant] "


def test_the_beginning_token_comes_first_where_the_tokenizer_puts_it(
    tmp_path: Path, build_small: Build, make_policy: Callable[..., Policy]
) -> None:
    bare = make_policy().prompt_tokens("add 3 and 4.")
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<begin>"})
    begin = tokenizer.bos_token_id
    model = build_small("llama", vocab_size=len(tokenizer))
    unused = load_policy(saved(tmp_path, model, tokenizer), CPU)
    assert unused.prompt_tokens("add 3 and 4.") == bare  # it has one and does not put it anywhere
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<begin> $A <end>", special_tokens=[("<begin>", begin), ("<end>", tokenizer.eos_token_id)]
    )
    policy = load_policy(saved(tmp_path, model, tokenizer), CPU)
    assert policy.prompt_tokens("add 3 and 4.") == [begin, *bare]
    tokenizer.chat_template = "<begin>" + TEMPLATE
    chat = load_policy(saved(tmp_path, model, tokenizer), CPU).prompt_tokens("add 3 and 4.")
    assert chat[0] == begin
    assert begin not in chat[1:]
    assert tokenizer.eos_token_id not in chat


def test_a_template_of_the_users_is_the_whole_prompt(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    told = Briefing("be {prompt}.", template="{system} q: {prompt}\na:")
    tokens = policy.prompt_tokens("add {system} and 4.", told)
    assert policy.tokenizer.decode(tokens) == "be {prompt}. q: add {system} and 4.\na:"


def test_a_system_prompt_that_cannot_be_said_is_refused(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    assert policy.prompt_tokens("1", BRIEFING) == policy.prompt_tokens("1")  # a verifier's own words may be left out
    with pytest.raises(ValueError, match=r"problems.system: the model has no chat template") as caught:
        policy.prompt_tokens("1", Briefing("be brief.", required=True))
    assert "\n" not in str(caught.value)


# -- where completions end


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


# -- models that cannot be driven


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_nothing_longer_than_the_range_of_positions_is_sampled(name: str, make_policy: Callable[..., Policy]) -> None:
    policy = make_policy(name)
    limit = policy.positions
    assert limit is not None
    prompt = len(policy.prompt_tokens("add 3 and 4."))
    problem = [Problem("add 3 and 4.", "3 + 4", "test")]
    asked = {"samples": 1, "seed": 0, "step": 0, "groups": [0]}
    with pytest.raises(ValueError, match=f"range of positions of {limit}; {limit - prompt} are left") as caught:
        sample(policy, 0, problem, SamplingConfig(max_tokens=limit - prompt + 1), **asked)
    assert "\n" not in str(caught.value)
    policy.check_room(prompt, limit - prompt)


def test_nothing_longer_than_an_attention_window_is_sampled(
    build_small: Build, tokenizer: PreTrainedTokenizerBase
) -> None:
    slides = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    policies = [
        Policy(build_small("qwen3", **changes), tokenizer, torch.device("cpu"), torch.float32)
        for changes in (slides, {"sliding_window": 16})  # the second has a size and does not use it
    ]
    assert [policy.window for policy in policies] == [16, None]
    problem = [Problem("add 3 and 4.", "3 + 4", "test")]
    asked = {"samples": 2, "seed": 0, "step": 0, "groups": [0]}
    with pytest.raises(ValueError, match="attention window of 16"):
        sample(policies[0], 0, problem, SamplingConfig(max_tokens=12), **asked)
    assert sample(policies[0], 0, problem, SamplingConfig(max_tokens=4), **asked).lengths.max() <= 4


def test_an_unknown_model_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text(json.dumps({"model_type": "abacus"}))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    for name in ("nowhere", "empty", "odd", "broken"):
        with pytest.raises(UnknownModelError) as caught:
            load_policy(str(tmp_path / name), CPU)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value, ValueError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("damage", ["torn", "missing", "other_shape", "more_layers"])
def test_damaged_weights_are_one_clear_line(
    damage: str, tmp_path: Path, build_small: Build, tokenizer: PreTrainedTokenizerBase
) -> None:
    folder = saved(tmp_path, build_small("llama"), tokenizer)
    weights = tmp_path / "model.safetensors"
    match damage:
        case "torn":
            weights.write_bytes(weights.read_bytes()[:1000])
        case "missing":
            weights.unlink()
        case _:
            config = json.loads((tmp_path / "config.json").read_text())
            other = {"intermediate_size": 48} if damage == "other_shape" else {"num_hidden_layers": 3}
            (tmp_path / "config.json").write_text(json.dumps({**config, **other}))
    with pytest.raises(UnknownModelError) as caught:
        load_policy(folder, CPU)
    assert "\n" not in str(caught.value)


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


# -- new weights in place


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
def test_weights_are_overwritten_in_place_tied_or_not(
    name: str, tmp_path: Path, make_policy: Callable[..., Policy]
) -> None:
    policy, other = make_policy(name, seed=0), make_policy(name, seed=1)
    save_policy(other, tmp_path)
    places = {key: value.data_ptr() for key, value in policy.model.state_dict().items()}
    assert not torch.equal(logits(policy.model), logits(other.model))
    policy.load_weights(read_weights(tmp_path))
    assert torch.equal(logits(policy.model), logits(other.model))
    assert {key: value.data_ptr() for key, value in policy.model.state_dict().items()} == places


def test_weights_in_several_files_written_by_transformers_are_read(
    tmp_path: Path, make_policy: Callable[..., Policy]
) -> None:
    policy, other = make_policy("llama", seed=0), make_policy("llama", seed=1)
    other.model.save_pretrained(tmp_path, max_shard_size="150KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    policy.load_weights(read_weights(tmp_path))
    assert torch.equal(logits(policy.model), logits(other.model))


def test_weights_are_converted_to_the_dtype_in_memory(tmp_path: Path, make_policy: Callable[..., Policy]) -> None:
    policy, other = make_policy(seed=0), make_policy(seed=1)
    save_policy(other, tmp_path, torch.bfloat16)
    policy.load_weights(read_weights(tmp_path))
    for name, value in other.model.state_dict().items():
        assert torch.equal(policy.model.state_dict()[name], value.bfloat16().float())


def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, build_small: Build, make_policy: Callable[..., Policy]
) -> None:
    policy = make_policy("llama")
    build_small("llama", intermediate_size=48).save_pretrained(tmp_path / "shape")
    build_small("llama", num_hidden_layers=3).save_pretrained(tmp_path / "name")
    build_small("llama", num_hidden_layers=1).save_pretrained(tmp_path / "fewer")
    (tmp_path / "none").mkdir()
    for folder, complaint in {
        "shape": "not fit",
        "name": "not fit",
        "fewer": "no weights",
        "none": "no weights",
    }.items():
        with pytest.raises(ValueError, match=complaint):
            policy.load_weights(read_weights(tmp_path / folder))


# -- device and dtype


def test_the_dtype_follows_the_device_unless_it_is_named() -> None:
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32
    assert choose_dtype("auto", torch.device("mps")) == torch.float32
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert choose_dtype("float16", torch.device("cpu")) == torch.float16
    assert choose_dtype("float32", torch.device("cuda")) == torch.float32


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_the_device_is_cuda_else_mps_else_cpu(
    cuda: bool, mps: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device("auto").type == chosen
    assert choose_device("cpu").type == "cpu"


def test_a_learner_keeps_float32_parameters_whatever_the_arithmetic(
    tmp_path: Path, build_small: Build, tokenizer: PreTrainedTokenizerBase
) -> None:
    folder = saved(tmp_path, build_small("llama"), tokenizer)
    config = PolicyConfig(device="cpu", dtype="bfloat16")
    for master, kept in ((True, torch.float32), (False, torch.bfloat16)):
        policy = load_policy(folder, config, master=master)
        assert {parameter.dtype for parameter in policy.model.parameters()} == {kept}
        assert policy.dtype == torch.bfloat16
