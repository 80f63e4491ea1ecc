import math
import random

import numpy as np
import pytest
from PIL import Image

from flows.report.pictures import SEEDS, reward_curve, trailing_means
from tests.bench import train


def rewards(count, seed=0):
    generator = random.Random(seed)
    return [0.3 + 0.6 * step / count + generator.gauss(0, 0.03) for step in range(count)]


def opened(path):
    with Image.open(path) as image:
        image.load()
    return image


def colored(path, color):
    """The pixels of one colour, as (rows, columns)."""
    pixels = np.asarray(opened(path).convert("RGB")).astype(int)
    wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
    return np.nonzero(np.abs(pixels - wanted).sum(axis=2) < 12)


def test_the_means_are_those_of_consecutive_steps():
    values = [0.0, 1.0, 0.5, 0.25, math.nan, 1.0, 1.0]
    means = trailing_means(values, 2)
    assert [mean for mean in means if math.isfinite(mean)] == [0.5, 0.75, 0.375, 1.0]
    assert [math.isnan(mean) for mean in means] == [True, False, False, False, True, True, False]
    assert len(trailing_means([1.0], 5)) == 1
    assert trailing_means(values[:4], 1) == values[:4]


def test_a_rising_reward_is_drawn_rising(tmp_path):
    path = tmp_path / "run" / "reward.png"
    reward_curve(path, range(60), rewards(60), held_out=[(0, 0.3), (60, 0.9)], title="sums $ and _names_")
    assert opened(path).size == (1200, 675)
    rows, columns = colored(path, SEEDS[0])
    line = columns < 1000  # leaves out the figure at its end and the legend's sample
    left, right = columns[line] < 300, columns[line] > 700
    assert rows[line][left].mean() > rows[line][right].mean() + 100
    assert len(colored(path, SEEDS[1])[0]) > 100  # the held-out points
    assert [file.name for file in path.parent.iterdir()] == ["reward.png"]


@pytest.mark.parametrize("sampled", [[], [0.5], [0.5, 0.6], [math.nan], [0.1, math.nan, 0.2] * 4, [math.nan] * 9])
def test_short_and_broken_runs_are_drawn(tmp_path, sampled, recwarn):
    reward_curve(tmp_path / "reward.png", range(len(sampled)), sampled, title="short \x1b[31m")  # not for a terminal
    assert opened(tmp_path / "reward.png").format == "PNG"
    assert not recwarn.list


def test_a_picture_replaces_the_one_before(tmp_path):
    path = tmp_path / "reward.png"
    reward_curve(path, range(9), rewards(9), title="one")
    before = path.read_bytes()
    reward_curve(path, range(9), rewards(9), title="one")
    assert path.read_bytes() == before
    reward_curve(path, range(20), rewards(20), title="one")
    assert path.read_bytes() != before


def test_lengths_that_differ_are_refused(tmp_path):
    with pytest.raises(ValueError, match="steps"):
        reward_curve(tmp_path / "reward.png", range(3), [0.5], title="wrong")
    assert not (tmp_path / "reward.png").exists()


def test_seeds_have_colours_of_their_own(tmp_path):
    runs = {f"seed {seed}": rewards(40, seed) for seed in range(3)}
    train.draw(tmp_path / "seeds.png", runs, title="three seeds")
    assert all(len(colored(tmp_path / "seeds.png", color)[0]) > 200 for color in SEEDS[:3])
    assert len(colored(tmp_path / "seeds.png", SEEDS[3])[0]) == 0


def test_a_picture_that_cannot_be_put_in_place_leaves_nothing(tmp_path):
    path = tmp_path / "reward.png"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        reward_curve(path, range(9), rewards(9), title="one")
    assert list(tmp_path.iterdir()) == [path]
