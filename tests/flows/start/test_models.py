"""Models that cannot be trained, or not as asked: refused before a run exists."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl.model.policy import UnknownModelError
from rl.model.tiny import build_tokenizer
from tests.bench.architectures import ARCHITECTURES, build

pytestmark = pytest.mark.slow


def small(folder: Path, name: str) -> str:
    [architecture] = [one for one in ARCHITECTURES if one.name == name]
    tokenizer = build_tokenizer()
    build(architecture, len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_model_that_sampler_and_learner_would_get_wrong_makes_no_run(lab: Any, tmp_path: Path) -> None:
    name = lab.new_name()
    with pytest.raises(UnknownModelError, match=r"RecurrentGemma.* nats"):
        lab.train(run=name, policy=small(tmp_path, "RecurrentGemma"), steps="1")
    assert not (lab.home / "runs" / name).exists()


def test_more_tokens_than_the_model_has_positions_for_make_no_run(lab: Any, tmp_path: Path) -> None:
    name = lab.new_name()
    with pytest.raises(ValueError, match=r"sampling.max_tokens: .* range of positions of 256"):
        lab.train(run=name, policy=small(tmp_path, "GPT-2"), steps="1", sampling__max_tokens="256")
    assert not (lab.home / "runs" / name).exists()


def test_a_prompt_of_an_evaluation_that_is_too_long_makes_no_run(lab: Any, tmp_path: Path) -> None:
    name = lab.new_name()
    long = {"prompt": "add 3 and 4, " * 400, "target": "7"}
    (tmp_path / "long.jsonl").write_text(json.dumps(long) + "\n")
    with pytest.raises(ValueError, match=r"tokens of prompt and .* of completion reach beyond .* 1024 .*long.jsonl:1"):
        lab.train(run=name, steps="1", evals=f"[{{path: {tmp_path}/long.jsonl}}]")
    assert not (lab.home / "runs" / name).exists()


def test_a_system_prompt_for_a_model_without_a_chat_template_makes_no_run(lab: Any, tmp_path: Path) -> None:
    name = lab.new_name()
    with pytest.raises(ValueError, match=r"problems.system: the model has no chat template"):
        lab.train(run=name, policy=small(tmp_path, "GPT-2"), steps="1", problems__system="be brief")
    assert not (lab.home / "runs" / name).exists()
