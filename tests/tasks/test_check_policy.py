"""What a person is told of a model before a run exists."""

from pathlib import Path

import pytest

from infra.cluster.resident import drop
from rl.config import PolicyConfig
from rl.model.tiny import build_model, build_tokenizer
from rl.records import Problem
from tasks.calls.start import check_policy

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
    said = check_policy(PolicyConfig(device="cpu", model=str(tmp_path)), problems, 8)
    drop("checked")
    assert said == (
        [
            f"a completion of {tmp_path} ends at <|im_end|> too: its chat template ends a turn with it, though its "
            "tokenizer and generation_config.json do not name it"
        ]
        if own == "<end>"
        else []
    )
