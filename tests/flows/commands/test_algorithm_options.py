"""What is said of the options of algorithms."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.config import TrainConfig
from flows.options.reading import OptionError, read_config
from rl.algorithms import ALGORITHMS
from rl.config import VERIFIERS

NAMES = ", ".join(ALGORITHMS)


def having(option: str) -> str:
    return ", ".join(name for name, of in ALGORITHMS.items() if option in of.model_fields)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--algorithm pppo", f"--algorithm.name 'pppo': is none of {NAMES}; did you mean ppo?"),
        ("--algorithm dr-grpo", f"--algorithm.name 'dr-grpo': is none of {NAMES}; did you mean dr_grpo?"),
        (
            "--algorithm xyz",
            f"--algorithm.name 'xyz': is none of {NAMES}; a class of yours is written my_algorithm.py:MyAlgorithm",
        ),
        (
            "--algorithm grpo --algorithm.ratio_cap 3",
            f"algorithm: ratio_cap: is no option of grpo, but of {having('ratio_cap')}",
        ),
        *(
            (
                f"--algorithm reinforce --algorithm.clip {clip}",  # 0.2 is its default
                f"algorithm: clip: is no option of reinforce, but of {having('clip')}",
            )
            for clip in (0.2, 0.21)
        ),
        (
            "--algorithm my.py:Mine --algorithm.options [beta",
            "--algorithm.options: '[beta' is not allowed; give a mapping in YAML, such as {beta: 0.1}",
        ),
        (
            "--algorithm.kl 0.1 --algorithm.kl.estimator k1",
            "algorithm.kl: estimator: the gradient of k1 in the loss is 0 on average; give k2, k3, or in_reward true",
        ),
        ("--algorithm.kl.target 1", "algorithm.kl: target: needs a coefficient above 0"),
        ("--algorithm.kl.estimator k2", "algorithm.kl: estimator: needs a coefficient above 0"),
        (
            "--algorithm remax --algorithm.overlong 5",
            "algorithm: overlong: remax subtracts the reward of a greedy completion, which has no such penalty; leave "
            "it out, or take another algorithm",
        ),
        ("--algorithm.minibatches 33", "algorithm.minibatches 33: a batch has 32 groups (batch.prompts)"),
        (
            "--algorithm.importance_cap 2",
            "algorithm: importance_cap: cuts the weights of proximal recomputed or interpolated; give one of these",
        ),
        (
            "--algorithm.correction truncate",
            "algorithm: correction: truncate cuts the weights of proximal recomputed or interpolated, as with "
            "behaviour the loss itself has the ratio to mu; give one of these",
        ),
        (
            "--algorithm.correction truncate --algorithm.proximal recomputed --algorithm.importance_cap 3",
            "algorithm: importance_cap: correction truncate cuts the same weights; leave out one of them",
        ),
        (
            "--algorithm m2po --algorithm.correction mask",
            "algorithm: correction: m2po leaves tokens out by their ratio to mu itself, and mask would do it again; "
            "leave algorithm.correction out",
        ),
        (
            "--algorithm grpo --algorithm.correction divergence",
            "algorithm: correction: divergence stands in place of a clip, and grpo clips the same ratio to mu; take "
            "cispo or reinforce, which do not, or proximal recomputed or interpolated, which clips another",
        ),
        ("--algorithm.correction.high 3", "algorithm.correction: high: needs a kind other than none"),
        (
            "--algorithm.correction mask --algorithm.correction.high 0.9",
            "algorithm.correction: high: on-policy tokens, of a ratio of 1, would be left out; give more than 1",
        ),
        (
            "--algorithm.correction sequence_mask --algorithm.correction.low 1",
            "algorithm.correction: low: on-policy tokens, of a ratio of 1, would be left out; give less than 1",
        ),
        (
            "--algorithm.correction divergence --algorithm.correction.low 0",
            "algorithm.correction: low: 0 would leave out what rounding moves; give more",
        ),
        (
            "--algorithm cispo --algorithm.correction divergence --algorithm.correction.high 5",
            "algorithm.correction: high: probabilities differ by less than 1; give less, such as 0.2, or inf for no "
            "bound on that side",
        ),
        (
            "--algorithm.correction mask --algorithm.correction.low 0 --algorithm.correction.high inf",
            "algorithm.correction: high: with inf mask corrects nothing; give a bound, or leave algorithm.correction "
            "out",
        ),
        (
            "--algorithm cispo --algorithm.correction divergence --algorithm.correction.low inf "
            "--algorithm.correction.high inf",
            "algorithm.correction: high: with inf divergence corrects nothing; give a bound, or leave "
            "algorithm.correction out",
        ),
        (
            "--algorithm.correction truncate --algorithm.correction.low 0.5",
            "algorithm.correction: low: truncate cuts from above alone; leave it out",
        ),
        (
            "--algorithm.correction truncate --algorithm.correction.high 0.5",
            "algorithm.correction: high: 0.5 would weigh on-policy tokens less; give at least 1",
        ),
        (
            "--algorithm.correction icepop",
            "--algorithm.correction.kind: 'icepop' is not allowed; give one of none, truncate, mask, sequence_mask, "
            "divergence",
        ),
        (
            "--algorithm grpo --critic.lr 1e-4",
            "critic.lr: grpo has no critic; take one that has, such as ppo, or leave it out",
        ),
        (
            "--cluster.critics 1",
            "cluster.critics: reinforce has no critic, so that they would have nothing to do; leave it out",
        ),
        (
            "--algorithm ppo --cluster.references 1",
            "cluster.references: ppo has no reference without algorithm.kl, so that they would have nothing to do; "
            "leave it out",
        ),
        (
            "--verifier.reward_model_weight 0.5",
            "verifier: reward_model_weight: is the factor of a model's score; name it: reward_model RUN",
        ),
        (
            "--verifier.reward_model judge --verifier.reward_model_weight -1",
            "--verifier.reward_model_weight: '-1' is not allowed; give a number, above 0, at most 1000.0",
        ),
        (
            "--verifier reward_model:judge",
            f"verifier 'reward_model:judge' is none of {', '.join(VERIFIERS)}, reward-model:RUN; "
            "did you mean reward-model:judge?",
        ),
        ("--algorithm reinforce++", f"--algorithm.name 'reinforce++': is none of {NAMES}; did you mean reinforce_pp?"),
        (
            "--algorithm my.py:Mine --algorithm.beta 0.5",
            "unknown option --algorithm.beta; my.py:Mine is given its options by --algorithm.options '{beta: VALUE}'",
        ),
        (
            "--algorithm my.py:Mine --algorithm.clip 0.5",
            "algorithm: clip: those of an algorithm of yours are given by options, as {clip: VALUE}",
        ),
        (
            "--dynamic_sampling true",
            "unknown option --dynamic_sampling: groups whose rewards are all equal are replaced (batch.oversample), "
            "but by ppo, remax and reinforce_pp, which learn from them too",
        ),
        ("--beta 0.1", "unknown option --beta; did you mean --algorithm.kl?"),
        (
            "--ref_model x",
            "unknown option --ref_model: the reference model is the start of the run, or follows the policy "
            "(algorithm.kl.reference_every)",
        ),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(refused: Callable[..., str], words: str, line: str) -> None:
    assert refused("train", *words.split()) == line


def test_what_an_own_algorithm_has_is_not_known_before_it_is_opened() -> None:
    given = {"algorithm": "my.py:Mine", "critic.lr": "1e-4", "cluster.critics": "1"}
    config = read_config(TrainConfig, file=None, overrides=given)
    config.refuse_by_needs({"values"})
    with pytest.raises(ValueError, match=r"critic.lr: my.py:Mine has no critic"):
        config.refuse_by_needs(set())
    acted_on = read_config(TrainConfig, file=None, overrides={"algorithm": "my.py:Mine", "environment": "guess"})
    with pytest.raises(ValueError, match=r"my.py:Mine has a greedy completion of one turn as its baseline"):
        acted_on.refuse_by_needs({"baseline"})


@pytest.mark.parametrize(
    "of",
    [
        {},
        {"algorithm": "ppo", "critic.lr": "1e-4", "cluster.critics": "1"},
        {"algorithm.correction": "mask", "algorithm.correction.high": "8"},
    ],
)
def test_what_was_saved_is_read_again(of: dict[str, str]) -> None:
    saved = read_config(TrainConfig, file=None, overrides=of)
    assert read_config(TrainConfig, file=None, overrides={}, base=saved.model_dump(mode="json")) == saved


def test_a_call_may_be_placed_on_workers_of_another_model() -> None:
    given = {"cluster.references": "1", "placement.generate": "REFERENCE"}
    assert read_config(TrainConfig, file=None, overrides=given).cluster.references == 1


def test_options_of_a_built_in_algorithm_are_not_given_as_those_of_ones_own() -> None:
    with pytest.raises(OptionError, match="options: are of an algorithm of yours; those of grpo are written algorithm"):
        read_config(TrainConfig, file=None, overrides={"algorithm": "grpo", "algorithm.options": "{clip: 0.1}"})


def test_what_was_called_loss_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("loss: {name: grpo, clip: 0.1}\n")
    (tmp_path / "dotted.yaml").write_text("loss.name: grpo\nloss.clip: 0.1\n")
    saved = {"loss": {"name": "grpo", "clip": 0.1, "overlong": 0}}
    for given in (
        read_config(TrainConfig, file=str(tmp_path / "old.yaml"), overrides={}),
        read_config(TrainConfig, file=str(tmp_path / "dotted.yaml"), overrides={}),
        read_config(TrainConfig, file=None, overrides={}, base=saved),
        TrainConfig.model_validate(saved),
    ):
        assert (given.algorithm.name, given.algorithm.clip) == ("grpo", 0.1)  # type: ignore[attr-defined]
