"""An algorithm of the user's: the one that the documentation shows, from a file outside of the packages."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl.algorithms.own import OwnAlgorithmError

DOCS = Path(__file__).parents[2] / "docs" / "algorithms.md"


@pytest.fixture
def above_median(tmp_path: Path) -> Path:
    (text,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    file = tmp_path / "above_median.py"
    file.write_text(text)
    return file


@pytest.mark.slow
def test_the_algorithm_of_the_documentation_trains_on_the_cluster(
    lab: Any, above_median: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len([line for line in above_median.read_text().splitlines() if line.strip()]) <= 20
    name = f"{above_median}:AboveMedian"
    result = lab.train(algorithm__name=name, algorithm__options="{beta: 0.5}", steps="2")
    run = Path(result.run)
    sizes = lab.metrics(run, "policy/advantage_size")
    assert list(sizes) == [1, 2]
    # r - median of 0 and 1 is 0, 0.5 or 1, and half of that
    assert all(0 < size <= 0.5 for size in sizes.values())
    above_median.write_text(above_median.read_text().replace("median of the group", "the group's median") + "\n")
    capsys.readouterr()
    lab.train(resume=result.run, algorithm__name=name, algorithm__options="{beta: 0.5}", steps="3")
    assert list(lab.metrics(run, "policy/advantage_size")) == [1, 2, 3]
    assert f"other than before: algorithm {name}: edited since" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("class Mine(:\n", "{}", r"mine.py:1: SyntaxError"),
        ("import no_such_package\n", "{}", r"mine.py: ModuleNotFoundError: No module named 'no_such_package'"),
        ("x = 1\n", "{}", r"mine.py: no algorithm 'Mine'; write: class MyAlgorithm\(Algorithm\)"),
        (
            "from rl.algorithms.reinforce import Reinforce\nclass Other(Reinforce): pass\n",
            "{}",
            r"no algorithm 'Mine'; it has Other",
        ),
        (
            "from rl.algorithms.algorithm import Algorithm\nclass Mine(Algorithm): pass\n",
            "{}",
            r"has no advantages and no token_loss",
        ),
        (
            "from rl.algorithms.reinforce import Reinforce\nclass Mine(Reinforce): needs = frozenset({'valuess'})\n",
            "{}",
            r"needs 'valuess', which no call makes; did you mean values\?",
        ),
        (
            "from rl.algorithms.reinforce import Reinforce\nclass Mine(Reinforce): pass\n",
            "{beta: 1}",
            r"algorithm.options.beta: is unknown; its options are ratio_cap",
        ),
        (
            "from rl.algorithms.reinforce import Reinforce\nclass Mine(Reinforce): beta: float = 1\n",
            "{betta: 1}",
            r"options.betta: is none of its options; did you mean beta\? \(its options are ratio_cap, beta\)",
        ),
        (
            "from rl.algorithms.reinforce import Reinforce\nclass Mine(Reinforce):\n"
            "    def advantages(self, batch):\n        return batch.reward\n",
            "{}",
            r"mine.py:Mine: AttributeError: 'Batch' object has no attribute 'reward'.*\(line 4\)",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line_before_a_run_is_written(
    lab: Any, tmp_path: Path, text: str, options: str, says: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    name = lab.new_name()
    with pytest.raises(OwnAlgorithmError, match=says) as refused:
        lab.train(algorithm__name=f"{tmp_path / 'mine.py'}:Mine", algorithm__options=options, run=name)
    assert "\n" not in str(refused.value)
    assert not (lab.run_folder(name) / "config.yaml").exists()


@pytest.mark.slow
def test_an_algorithm_whose_file_is_not_there_is_one_line(tmp_path: Path) -> None:
    asked = [sys.executable, "-c", "from flows.cli import main; main()", "train", "--algorithm", "none.py:Mine"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "none.py: no such file" in done.stderr
