import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from rl.config import PolicyConfig
from rl.loading.reward_model import load_reward_model
from rl.model.memory import NoRoomError
from rl.model.policy import Policy, UnknownModelError, save_policy

Make = Callable[..., Policy]
CPU = PolicyConfig(device="cpu", dtype="float32")


@pytest.mark.parametrize("name", ["qwen3", "llama", "gemma2", "gpt2"])
def test_what_is_saved_is_what_transformers_loads(name: str, make_policy: Make, tmp_path: Path) -> None:
    save_policy(make_policy(name), tmp_path / "start")
    policy = load_reward_model(str(tmp_path / "start"), CPU, master=True, fresh=True)
    head = policy.model.get_output_embeddings()
    assert not head.weight.any()
    with torch.no_grad():
        head.weight.normal_()
    save_policy(policy, tmp_path / "made")
    ours = load_reward_model(str(tmp_path / "made"), CPU)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "made").eval()
    assert theirs.config.num_labels == 1
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        want = policy.model(input_ids=ids).logits
        assert want.shape == (1, 1)
        assert torch.equal(theirs(input_ids=ids).logits, want)
        assert torch.equal(ours.model(input_ids=ids).logits, want)


def test_a_language_model_is_no_reward_model(make_policy: Make, tmp_path: Path) -> None:
    save_policy(make_policy(), tmp_path)
    with pytest.raises(UnknownModelError, match=r"is no reward model: it has no weights for score\.weight"):
        load_reward_model(str(tmp_path), CPU)


def test_one_that_nobody_holds_is_gone_at_once(make_policy: Make, tmp_path: Path) -> None:
    """Its memory does not wait for a garbage collection."""
    save_policy(make_policy(), tmp_path)
    gc.disable()
    try:
        made = load_reward_model(str(tmp_path), CPU, fresh=True)
        assert made.model.get_output_embeddings() is made.model.score
        weights = [weakref.ref(parameter) for parameter in made.model.parameters()]
        del made
        assert not any(weight() is not None for weight in weights)
    finally:
        gc.enable()


def test_one_without_room_is_not_one_that_cannot_be_loaded(
    make_policy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    save_policy(make_policy(), tmp_path)
    monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", full)
    with pytest.raises(NoRoomError, match="does not fit into the memory of cpu"):
        load_reward_model(str(tmp_path), CPU, fresh=True)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match="cannot be loaded as a reward model"):
        load_reward_model(str(tmp_path / "none"), CPU)
