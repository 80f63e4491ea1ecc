"""A reward model's scores: one for one answer, whoever it is scored beside."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from infra.cluster.resident import drop
from infra.storage import store
from infra.storage.manifest import Torn
from rl.config import PolicyConfig
from rl.judging import Judgement
from rl.loading.reward_model import load_reward_model
from rl.model.policy import Policy, save_policy
from rl.model.tiny import build_model, build_tokenizer
from rl.records import Problem, Rollouts
from rl.verifiers.spec import VerifierError, VerifierSpec
from tasks.calls.reward import (
    BrokenRewardModelError,
    NoRoomForCompletionError,
    RewardModel,
    RewardModelChangedError,
)
from tasks.reward import check_rewards, with_rewards
from tests.tasks.here import Here

WORDS = ("1 + 2", "3", "12 * 4 + 7 - 9", "8 - 8", "2 * 2 * 2 * 2 * 2 * 2")
PROBLEMS = [Problem(f"what is {row} plus 3?", f"{row} + 3", f"t:{row}") for row in range(6)]


def stored(tmp_path: Path, draw: Callable[[torch.Tensor], object], model: PreTrainedModel | None = None) -> RewardModel:
    """One whose head's weights are drawn so."""
    tokenizer = build_tokenizer()
    start = build_model(len(tokenizer), 0, 0, 0) if model is None else model
    save_policy(Policy(start, tokenizer, torch.device("cpu"), torch.float32), tmp_path / "start")
    config = PolicyConfig(device="cpu", dtype="float32")
    made = load_reward_model(str(tmp_path / "start"), config, master=True, fresh=True)
    with torch.no_grad():
        draw(made.model.get_output_embeddings().weight)
    save_policy(made, tmp_path / "made")
    uri = str(tmp_path / "stored")
    manifest = store.write_folder(uri, tmp_path / "made", meta={}, flat=True)
    drop(f"reward model {uri}")
    return RewardModel(uri, manifest.digest)


@pytest.fixture
def judge(tmp_path: Path) -> RewardModel:
    return stored(tmp_path, lambda weight: weight.normal_())


def test_answers_that_are_the_same_have_the_same_score(judge: RewardModel) -> None:
    texts = [[WORDS[(row + sample // 2) % len(WORDS)] for sample in range(8)] for row in range(6)]
    ended = np.ones((6, 8), dtype=np.bool_)
    ended[0, 1] = False  # the same text, cut: another answer
    found, cut = judge.score(PROBLEMS, texts, ended)
    assert not cut.any()
    for row in range(6):
        by_text = {(text, end): score for text, end, score in zip(texts[row], ended[row], found[row], strict=True)}
        assert [by_text[text, end] for text, end in zip(texts[row], ended[row], strict=True)] == found[row].tolist()
        assert len(set(by_text.values())) == len(by_text)  # others have others
    alone = np.concatenate([judge.score([PROBLEMS[row]], [texts[row]], ended[row : row + 1])[0] for row in range(6)])
    np.testing.assert_allclose(found, alone, atol=1e-5)
    assert found.dtype == np.float32


def test_a_reward_model_that_was_replaced_scores_no_more(judge: RewardModel, tmp_path: Path) -> None:
    asked = PROBLEMS[:1], [["3"]], np.ones((1, 1), dtype=np.bool_)
    before = judge.score(*asked)
    other = stored(tmp_path, lambda weight: weight.fill_(1.0))  # as rlvf reward-model --resume does
    with pytest.raises(RewardModelChangedError, match=rf"^reward model {judge.uri} is another one since this began"):
        judge.score(*asked)
    assert other.score(*asked)[0] != before[0]


@pytest.mark.parametrize(("weight", "what"), [(float("nan"), "not finite"), (1e9, r"beyond 1e\+06")])
def test_a_reward_model_whose_scores_are_no_rewards_is_named(tmp_path: Path, weight: float, what: str) -> None:
    judge = stored(tmp_path, lambda head: head.copy_(weight * torch.randn_like(head)))
    with pytest.raises(BrokenRewardModelError, match=rf"^reward model {judge.uri} gives scores that are {what}: "):
        judge.score(PROBLEMS[:1], [["3"]], np.ones((1, 1), dtype=np.bool_))


@pytest.fixture
def short(tmp_path: Path) -> RewardModel:
    """One of 11 positions."""
    ids = {"vocab_size": len(build_tokenizer()), "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(n_positions=11, n_embd=16, n_layer=1, n_head=2, **ids))
    return stored(tmp_path, lambda weight: weight.normal_(), model)


def spec_of(judge: RewardModel) -> VerifierSpec:
    return VerifierSpec(name=f"reward-model:{judge.uri}", digest=judge.digest)


def sums(*prompts: str) -> list[Problem]:
    return [Problem(prompt, "3", f"q.jsonl:{row}", set="q") for row, prompt in enumerate(prompts, 1)]


def test_a_prompt_without_room_is_refused_at_the_start(short: RewardModel) -> None:
    room = sums("1 + 2", "what is 1 plus 2 plus 3 plus 4 plus 5?", "what is 12 plus 34 plus 56 plus 78?")
    with pytest.raises(VerifierError) as refused:
        check_rewards(Here(), {"q": spec_of(short)}, room)  # type: ignore[arg-type]
    assert f"reward model {short.uri}: the prompt of q.jsonl:2 has " in str(refused.value)
    assert "leaves no room for a completion in its range of positions of 11" in str(refused.value)
    assert "\n" not in str(refused.value)
    check_rewards(Here(), {"q": spec_of(short)}, room[:1])  # type: ignore[arg-type]
    with pytest.raises(NoRoomForCompletionError, match=r"the prompt of q\.jsonl:2 has"):  # not seen before the run
        short.score(room[1:2], [["3"]], np.ones((1, 1), dtype=np.bool_))


def test_completions_of_which_a_part_is_scored_are_counted(short: RewardModel) -> None:
    problems = sums("1 + 2", "3 + 4")
    texts = [("3", "4 + 5 + 6 + 7 + 8 + 9 + 10 + 11"), ("7", "8")]
    rollouts = Rollouts.padded(problems, [[0]] * 2, [[0]] * 4, texts=[text for row in texts for text in row])
    program = Judgement(np.zeros((2, 2), np.float32), (("scored",) * 2,) * 2)
    found = with_rewards(Here(), rollouts, program, {"q": spec_of(short)})  # type: ignore[arg-type]
    assert found.part("reward_model_cut").tolist() == [[0, 1], [0, 0]]
    assert found.rewards[1, 0] != found.rewards[1, 1]
    np.testing.assert_array_equal(found.part("reward_model"), found.rewards)


def test_a_damaged_reward_model_says_what_writes_it_anew(judge: RewardModel) -> None:
    weights = Path(judge.uri, "model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(Torn) as caught:
        judge.score(PROBLEMS[:1], [["3"]], np.ones((1, 1), dtype=np.bool_))
    far = pickle.loads(pickle.dumps(caught.value))  # as it comes from a worker
    assert far.remedy.startswith("rlvf reward-model --resume JUDGE writes it anew")
    assert Torn.remedy.endswith("`rlvf train --resume RUN`"), "others stay"
