import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from rl.config import PolicyConfig, SamplingConfig
from rl.loading.policy import load_policy
from rl.model import processor
from rl.model.head import head_logits, hidden_states
from rl.model.policy import Policy, UnknownModelError, choose_device, choose_dtype, read_weights, save_policy
from rl.records import Problem
from rl.sampling.sampler import sample
from tests.rl.saved import CPU, TOKENS, Build, saved


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


@pytest.mark.parametrize(
    ("said", "because"), [({"num_attention_heads": 0}, "ZeroDivisionError: "), ({"hidden_act": "none"}, "KeyError: ")]
)
def test_a_configuration_of_which_transformers_makes_nothing_is_one_line(
    tmp_path: Path, build_small: Build, tokenizer: PreTrainedTokenizerBase, said: dict[str, Any], because: str
) -> None:
    path = saved(tmp_path, build_small("qwen3"), tokenizer)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **said}))
    with pytest.raises(UnknownModelError, match=f"cannot be loaded: {because}") as one:
        load_policy(path, CPU)
    assert "\n" not in str(one.value)


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


@pytest.mark.parametrize("named", [None, [], ["Nothing"], ["AutoModelForCausalLM"], ["set_seed"]])
def test_an_architecture_that_is_none_is_one_clear_line(
    named: list[str] | None, tmp_path: Path, build_small: Build, tokenizer: PreTrainedTokenizerBase
) -> None:
    folder = saved(tmp_path, build_small("llama"), tokenizer)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": named}))
    with pytest.raises(UnknownModelError, match="names no model that transformers knows") as caught:
        load_policy(folder, CPU, weights=read_weights(tmp_path))
    assert "\n" not in str(caught.value)


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


def test_the_dtype_follows_device_and_processor_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, mps, cuda = map(torch.device, ("cpu", "mps", "cuda"))
    for pays in (True, False):
        monkeypatch.setattr(processor, "fast_at_bfloat16", lambda pays=pays: pays)
        assert choose_dtype("auto", cpu, lambda: 600_000_000) == (torch.bfloat16 if pays else torch.float32)
        assert choose_dtype("auto", cpu, lambda: 900_000) == torch.float32
        assert choose_dtype("auto", mps, lambda: 600_000_000) == torch.float32
        assert choose_dtype("auto", cuda, lambda: 900_000) == torch.bfloat16
        assert choose_dtype("float16", cpu, lambda: 0) == torch.float16
        assert choose_dtype("float32", cuda, lambda: 0) == torch.float32


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
