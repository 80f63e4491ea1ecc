"""What is said of the options of algorithms."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.config import TrainConfig
from flows.options.reading import OptionError, read_config
from rl.algorithms import ALGORITHMS

NAMES = ", ".join(ALGORITHMS)


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
            "algorithm: ratio_cap: is no option of grpo, but of maxrl, reinforce, remax, rloo",
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
