"""The file with a run's settings: whole, cut off, edited, or anything else."""

from pathlib import Path

import pytest
import yaml

from flows.config import TrainConfig
from flows.options.plain_yaml import load_yaml
from flows.options.reading import OptionError, read_config
from flows.start.runs import Run
from flows.start.saved import END, SAVED_BEFORE, saved_config
from infra.runs.checkpoints import CONFIG, NotARun
from rl.algorithms import ALGORITHMS
from rl.learning.algorithm_config import AlgorithmSpec, CommonAlgorithmConfig


@pytest.fixture
def saved(tmp_path: Path) -> Run:
    given = {
        "algorithm": "grpo",
        "sampling.temperature": "0.7",
        "problems.template": "# ends here {prompt}\n# ends here\n",
    }
    run = Run(str(tmp_path / "first"), read_config(TrainConfig, file=None, overrides=given), resumed=False)
    run.save_config()
    return run


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"steps: [1,", r"first/config\.yaml is damaged: "),
        (b"\x80\xff", r"first/config\.yaml is damaged: "),
        (b"", r"first/config\.yaml is damaged: it holds no settings"),
        (b"steps: &a 3\nseed: *a", r"first/config\.yaml is damaged: \*a is an alias, which is not taken"),
        (b'run: "\\ud800"', r"first/config\.yaml is damaged: half of a character"),
        (b"[" * 10_000, r"first/config\.yaml is damaged: it is nested too deeply"),
        (b"steps: " + b"9" * 5000, r"first/config\.yaml is damaged: Exceeds the limit \(4300 digits\)"),
        (b"steps: 2026-13-45", r"first/config\.yaml is damaged: month must be in 1\.\.12"),
        (b"- steps", r"first/config\.yaml is damaged: it holds no settings"),
        (b"stepz: 3", r"^saved configuration: unknown key stepz; did you mean steps\?$"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_in_one_line(saved: Run, content: bytes, line: str) -> None:
    Path(saved.uri, CONFIG).write_bytes(content)
    with pytest.raises(ValueError, match=line) as refused:
        saved_config(saved.uri)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_configuration_that_was_cut_off_is_refused_wherever_that_was(saved: Run) -> None:
    file = Path(saved.uri, CONFIG)
    whole = file.read_text()
    lines = whole.splitlines(keepends=True)
    cuts = ["".join(lines[:count]) for count in range(len(lines))]
    assert len(cuts) > 60
    for content in [*cuts, whole[: whole.rindex(END) + 3]]:
        file.write_text(content)
        with pytest.raises(NotARun, match=r"config\.yaml is damaged: ") as refused:
            saved_config(saved.uri)
        assert "\n" not in str(refused.value)
    assert f"its last line, '{END}', is missing: it was cut off; restore the file, or write" in str(refused.value)


def test_a_configuration_of_an_older_version_or_edited_by_hand_is_taken(saved: Run) -> None:
    file = Path(saved.uri, CONFIG)
    whole = file.read_text()
    file.write_text("\n".join(whole.splitlines()[1:-1]))  # neither of the two lines
    assert saved_config(saved.uri) == saved.config
    file.write_text(whole.replace("\n", "\r\n") + "\n# mine\n")
    assert saved_config(saved.uri) == saved.config


@pytest.mark.parametrize("name", ["grpo", "remax", "ppo"])
def test_of_all_algorithms_options_that_older_runs_saved_those_of_its_own_are_read(saved: Run, name: str) -> None:
    own = {option: SAVED_BEFORE[option] for option in ALGORITHMS[name].model_fields}
    file = Path(saved.uri, CONFIG)
    file.write_text(yaml.safe_dump({"algorithm": {**SAVED_BEFORE, "name": name}}))
    assert AlgorithmSpec(**dict(saved_config(saved.uri).algorithm)).algorithm == ALGORITHMS[name](**own)
    file.write_text(yaml.safe_dump({"algorithm": {**SAVED_BEFORE, "name": name, "second_moment": 0.05}}))
    with pytest.raises(OptionError, match=f"second_moment: is no option of {name}"):
        saved_config(saved.uri)


def test_of_all_algorithms_options_those_of_its_own_are_saved(saved: Run) -> None:
    """Another's may change with the algorithms that there are: test_saved_options.py adds one."""
    held = load_yaml(Path(saved.uri, CONFIG).read_text())["algorithm"]
    assert held.keys() - CommonAlgorithmConfig.model_fields.keys() == {"clip", "dual_clip"}
