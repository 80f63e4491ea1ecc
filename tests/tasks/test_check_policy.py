"""What a person is told of a model before a run exists."""

from pathlib import Path

import pytest

from infra.cluster.resident import drop
from infra.storage.fence import Fence
from rl.config import PolicyConfig
from rl.learning.optimizer_config import OptimizerConfig
from rl.loading.policy import load_policy
from rl.model.policy import Policy
from rl.model.tiny import build_model, build_tokenizer
from rl.records import Instructions, Problem
from tasks.calls.start import check_policy, take_checked

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("own", ["<end>", "<|im_end|>"])
def test_an_end_that_the_chat_template_alone_names_is_said(tmp_path: Path, own: str) -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "eos_token": own})
    tokenizer.chat_template = CHATML
    build_model(len(tokenizer), 2, 0, 0).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    problems = [Problem("add 1 and 2.", "1 + 2", "a:1")]
    said = check_policy(PolicyConfig(device="cpu", model=str(tmp_path)), OptimizerConfig(), problems, 8)
    drop("checked")
    assert said == (
        [
            f"a completion of {tmp_path} ends at <|im_end|> too: its chat template ends a turn with it, though its "
            "tokenizer and generation_config.json do not name it"
        ]
        if own == "<end>"
        else []
    )


def test_a_model_that_was_mended_after_it_was_refused_is_read_anew(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    build_model(len(tokenizer), 2, 0, 0).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    told = Instructions("be brief.", required=True)
    problems = [Problem("add 1 and 2.", "1 + 2", "a:1", instructions=told)]
    policy = PolicyConfig(device="cpu", model=str(tmp_path))
    with pytest.raises(ValueError, match="no chat template"):
        check_policy(policy, OptimizerConfig(), problems, 8)
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    assert check_policy(policy, OptimizerConfig(), problems, 8) == []
    drop("checked")


@pytest.mark.slow
def test_a_checked_model_is_taken_by_the_session_that_checked_it_alone(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    policy = PolicyConfig(device="cpu", model=str(tmp_path))
    one, later = Fence(str(tmp_path / "run"), 1), Fence(str(tmp_path / "run"), 2)

    def put(seed: int) -> None:
        build_model(len(tokenizer), 2, 0, seed).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)

    def first(taken: Policy) -> float:
        return float(next(taken.model.parameters()).sum())

    put(0)
    check_policy(policy, OptimizerConfig(), [Problem("add 1 and 2.", "1 + 2", "a:1")], 8, one)
    put(1)  # while no session goes on
    replaced = first(take_checked(str(tmp_path), policy, later))
    assert replaced == first(load_policy(str(tmp_path), policy))
    put(0)
    check_policy(policy, OptimizerConfig(), [Problem("add 1 and 2.", "1 + 2", "a:1")], 8, one)
    put(1)
    assert first(take_checked(str(tmp_path), policy, one)) != replaced


def test_a_chat_template_with_a_date_is_said(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }} {{ messages[0]['content'] }}"
    build_model(len(tokenizer), 2, 0, 0).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    policy = PolicyConfig(device="cpu", model=str(tmp_path))
    (said,) = check_policy(policy, OptimizerConfig(), [Problem("add 1 and 2.", "1 + 2", "a:1")], 8)
    drop("checked")
    assert said.startswith(f"the chat template of {tmp_path} puts today's date into each prompt")
    own = [Problem("add 1 and 2.", "1 + 2", "a:1", instructions=Instructions("", template="{prompt} ="))]
    assert check_policy(policy, OptimizerConfig(), own, 8) == []
    drop("checked")
