"""Options by what is trained."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3Config

from flows.config import EvalConfig, TrainConfig
from flows.options.reading import read_config
from flows.start.defaults import (
    notes_on_staleness,
    notes_on_tiny,
    parameters,
    with_defaults,
    with_eval_defaults,
    without_effect,
)
from rl.algorithms import ALGORITHMS
from rl.learning.algorithm_config import AlgorithmSpec
from rl.model.tiny import build_model, build_tokenizer
from rl.records import Problem

LIKE_QWEN3_06B = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
RECOMMENDED = "--algorithm cispo --algorithm.correction divergence"  # for old batches


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The configuration of a model of 0.6B parameters; that is all that is read."""
    folder = tmp_path_factory.mktemp("large")
    Qwen3Config(**LIKE_QWEN3_06B).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def middle(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("middle")
    Qwen3Config(**{**LIKE_QWEN3_06B, "vocab_size": 32000, "num_hidden_layers": 2}).save_pretrained(folder)
    return str(folder)


def asked(cls: Any = TrainConfig, **options: str) -> Any:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return read_config(cls, file=None, overrides=named)


def test_the_tiny_policy_gets_what_it_always_had() -> None:
    config, lines = with_defaults(TrainConfig())
    assert (config.optimizer.lr, config.sampling.max_tokens) == (3e-4, 40)
    assert lines == [
        "optimizer.lr 0.0003: for a policy of 0.9M parameters",
        "sampling.max_tokens 40: for a policy of 0.9M parameters",
    ]


@pytest.mark.parametrize(("staleness", "rate"), [(0, 3e-4), (1, 3e-4), (2, 2.1e-4), (4, 1.5e-4), (8, 1.1e-4)])
def test_who_learns_from_old_batches_takes_smaller_steps_unless_somebody_says_how_large(
    staleness: int, rate: float
) -> None:
    config, (line, _) = with_defaults(asked(staleness=str(staleness)))
    assert config.optimizer.lr == rate
    because = f", and staleness {staleness}" if staleness > 1 else ""
    assert line == f"optimizer.lr {rate:g}: for a policy of 0.9M parameters{because}"
    config, lines = with_defaults(asked(staleness=str(staleness), optimizer__lr="3e-4"))
    assert config.optimizer.lr == 3e-4
    assert not any("optimizer.lr" in line for line in lines)


def test_the_tiny_policy_has_as_many_parameters_as_is_said() -> None:
    tokenizer = build_tokenizer()
    assert parameters("tiny") == build_model(len(tokenizer), 0, 0, 0).num_parameters()


@pytest.mark.parametrize(
    ("verifier", "tokens", "reason"),
    [
        ("arithmetic", 64, "for the verifier arithmetic"),
        ("gsm8k", 512, "for the verifier gsm8k"),
        ("math", 1024, "for the verifier math"),
        ("my_reward.py:reward", 512, "for a verifier of yours"),
    ],
)
def test_a_model_of_half_a_billion_parameters_is_not_ruined(
    verifier: str, tokens: int, reason: str, large: str
) -> None:
    config, lines = with_defaults(asked(policy=large, problems="q.csv", verifier=verifier))
    assert parameters(large) == 596_049_920
    assert (config.optimizer.lr, config.sampling.max_tokens) == (1e-6, tokens)
    assert lines == [
        "optimizer.lr 1e-06: for a policy of 596.0M parameters",
        f"sampling.max_tokens {tokens}: {reason}",
    ]


def test_what_is_chosen_is_within_what_the_model_attends_to(large: str, tmp_path: Path) -> None:
    settings = json.loads(Path(large, "config.json").read_text())
    slides = {"sliding_window": 512, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 28}
    (tmp_path / "config.json").write_text(json.dumps({**settings, **slides}))
    config, lines = with_defaults(asked(policy=str(tmp_path), problems="q.csv", verifier="gsm8k"))
    assert config.sampling.max_tokens == 256
    assert lines[1] == "sampling.max_tokens 256: half of the 512 that the model can attend to"


def test_between_them_and_of_several_sets_the_longest(middle: str) -> None:
    mix = "[{path: grammar, verifier: arithmetic}, {path: countdown, verifier: gsm8k}]"
    config, _ = with_defaults(asked(policy=middle, mix=mix))
    assert (config.optimizer.lr, config.sampling.max_tokens) == (3e-5, 512)


@pytest.mark.parametrize(
    ("model", "rate", "size"), [("tiny", 3e-4, "0.9M"), ("middle", 2e-4, "64.2M"), ("large", 1e-5, "596.0M")]
)
def test_adapters_learn_at_a_higher_rate_within_bounds(
    model: str, rate: float, size: str, request: pytest.FixtureRequest
) -> None:
    name = model if model == "tiny" else request.getfixturevalue(model)
    config, lines = with_defaults(asked(policy=name, policy__lora="16"))
    assert config.optimizer.lr == rate
    assert f"optimizer.lr {rate:g}: for adapters on a policy of {size} parameters" in lines


def test_what_is_given_stays_and_nothing_is_said(large: str) -> None:
    given = asked(policy=large, optimizer__lr="2e-5", sampling__max_tokens="7")
    assert with_defaults(given) == (given, [])
    again, _ = with_defaults(asked(policy=large))
    assert with_defaults(again) == (again, [])  # a saved configuration has them


def test_an_evaluation_of_a_run_is_as_long_as_its_training(large: str) -> None:
    trained, _ = with_defaults(asked(policy=large, sampling__max_tokens="99"))
    config, lines = with_eval_defaults(asked(EvalConfig, policy="run7"), trained)
    assert (config.sampling.max_tokens, lines) == (99, [])
    alone, lines = with_eval_defaults(asked(EvalConfig, policy=large, problems="q.csv", verifier="gsm8k"), None)
    assert (alone.sampling.max_tokens, lines) == (512, ["sampling.max_tokens 512: for the verifier gsm8k"])


def test_a_penalty_that_begins_before_the_first_token_is_refused() -> None:
    with pytest.raises(ValueError, match=r"algorithm.overlong 41: give at most sampling.max_tokens, 40"):
        with_defaults(asked(algorithm__overlong="41"))
    assert with_defaults(asked(algorithm__overlong="40"))[0].algorithm.overlong == 40


def test_the_tiny_policy_is_not_sent_to_learn_words_without_a_line() -> None:
    words = [Problem("what is the capital of France?", "Paris", "")] * 3
    sums = [Problem("add 1 and 2.", "3", "")] * 3
    (said,) = notes_on_tiny("tiny", words + sums[:1])
    assert "take one that knows words, such as --policy" in said
    assert [notes_on_tiny(*of) for of in (("tiny", words + sums), ("tiny", []), ("Qwen/Qwen3-0.6B", words))] == [[]] * 3


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_clip_around_a_policy_of_several_versions_ago_is_warned_of(name: str) -> None:
    clips = name in {"grpo", "dr_grpo", "dapo", "gspo", "sapo", "ppo", "reinforce_pp"}
    plain = AlgorithmSpec(name=name)
    assert [len(notes_on_staleness(staleness, plain)) for staleness in (0, 1, 2, 3)] == [0, 0, clips, clips]
    for staleness in (2, 8) if clips else ():
        (line,) = notes_on_staleness(staleness, plain)
        assert line.startswith(
            f"warning: with staleness {staleness} {name} clips around a policy of up to {staleness} versions ago"
        )
        assert line.index(RECOMMENDED) < line.index("--algorithm.proximal recomputed")
        assert ("at staleness 8 the tiny policy ended at" in line) == (staleness == 8)
        (line,) = notes_on_staleness(staleness, plain, resumed=True)  # which cannot change the algorithm
        assert f"; give less staleness, or begin a new run with {RECOMMENDED}" in line
    assert notes_on_staleness(3, AlgorithmSpec(name=name, proximal="recomputed")) == []
    if name != "m2po":
        masked = AlgorithmSpec.model_validate({"name": name, "correction": {"kind": "mask"}})
        assert len(notes_on_staleness(8, masked)) == clips  # which gives what is clipped no gradient back


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("proximal", ["behaviour", "recomputed", "interpolated"])
def test_batches_of_several_versions_ago_that_nothing_corrects_are_warned_of(name: str, proximal: str) -> None:
    def notes(staleness: int, correction: str = "none") -> list[str]:
        given = {"name": name, "proximal": proximal, "correction": {"kind": correction}}
        return notes_on_staleness(staleness, AlgorithmSpec.model_validate(given))

    if name == "m2po":  # is a mask itself
        assert notes(64) == []
        return
    clips = ALGORITHMS[name].trust_region and proximal == "behaviour"
    assert [len(notes(staleness)) for staleness in (0, 1, 3, 4, 64)] == [0, 0, clips, 1, 1]
    if not clips:
        (line,) = notes(8)
        assert line == (
            "warning: with staleness 8 batches are up to 8 versions old, and algorithm.correction is none; from 4 on "
            f"docs/asynchrony.md recommends {RECOMMENDED}; at staleness 8 the tiny policy ended at 0.971 to 0.974 with "
            "cispo and divergence, of three seeds, and at 0.623 to 0.925 with cispo alone "
            "(docs/benchmarks/learning.md, Old batches)"
        )
        spec = AlgorithmSpec.model_validate({"name": name, "proximal": proximal})
        (line,) = notes_on_staleness(8, spec, resumed=True)
        assert "docs/asynchrony.md recommends --algorithm.correction divergence; at" in line
        assert [notes(8, kind) for kind in ("mask", "sequence_mask", "divergence")] == [[]] * 3


def test_what_a_warning_says_of_old_batches_is_what_the_docs_say() -> None:
    pages = Path(__file__).parents[3] / "docs"
    assert RECOMMENDED in (pages / "asynchrony.md").read_text()
    _, _, measured = (pages / "benchmarks" / "learning.md").read_text().partition("### Old batches\n")
    rows = [line for line in measured.partition("\n## ")[0].splitlines() if line.startswith("| 8 |")]
    assert any("| mask by `divergence` | 0.971, 0.971, 0.974 |" in line for line in rows)
    assert any("| none | **0.623, 0.756, 0.925** |" in line for line in rows)


def test_workers_that_no_call_is_placed_on_are_said_and_how_they_get_one() -> None:
    ppo = {"algorithm": "ppo", "algorithm__kl": "0.01", "cluster__critics": "1", "cluster__references": "1"}
    _, lines = with_defaults(asked(**ppo))
    assert [line for line in lines if line.startswith("cluster.")] == [
        "cluster.critics 1: no call is placed there, so that it does nothing; give --placement.value CRITIC "
        "--placement.train_critic CRITIC",
        "cluster.references 1: no call is placed there, so that it does nothing; give --placement.reference REFERENCE",
    ]
    placed = {"placement__value": "CRITIC", "placement__train_critic": "CRITIC", "placement__reference": "REFERENCE"}
    _, lines = with_defaults(asked(**ppo, **placed))
    assert not any(line.startswith("cluster.") for line in lines)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"staleness": "0", "lease__seconds": "5"},
            ["lease.seconds 5: at staleness 0 a lease has batch.lease prompts"],
        ),
        (
            {"staleness": "0", "inflight__kv_versions": "3"},
            ["inflight.kv_versions 3: at staleness 0 all tokens of a batch are of one version"],
        ),
        (
            {"inflight__weights": "false", "inflight__kv_versions": "5"},
            ["inflight.kv_versions 5: with inflight.weights false weights are swapped between leases"],
        ),
        (
            {"policy__engine": "http://127.0.0.1:8000", "inflight__kv_versions": "5"},
            ["inflight.kv_versions 5: a server (policy.engine) is given weights between leases"],
        ),
        ({"audit__share": "0", "audit__bound": "0.05"}, ["audit.bound 0.05: with audit.share 0 nothing is audited"]),
        ({"lease__seconds": "5", "inflight__kv_versions": "3"}, []),
        ({"staleness": "0"}, []),
        ({"staleness": "0", "lease__seconds": "0"}, []),
        ({"inflight__weights": "false"}, []),
    ],
)
def test_what_is_set_and_does_nothing_is_said(given: dict[str, str], said: list[str]) -> None:
    assert without_effect(asked(**given)) == [f"{line}, so that it does nothing" for line in said]
