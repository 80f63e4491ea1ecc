"""Numerals that name their base."""

import time

import pytest

from rl.verifiers.reading.bases import numeral, same_numeral


@pytest.mark.parametrize("written", ["4210_5", "(4210)_{five}", r"\text{4210}_{(5)}", r"4210\text{ in base five}"])
def test_a_base_is_read_however_it_is_written(written: str) -> None:
    assert numeral(written) == ("4210", 5)


@pytest.mark.parametrize(
    ("prompt", "same"),
    [("Use base-5.", True), ("In base five.", True), ("In base $5$.", True), ("In base 15.", False), ("Add.", False)],
)
def test_a_problem_names_the_base(prompt: str, same: bool) -> None:
    assert same_numeral("4210_5", "4210", prompt) is same
    assert same_numeral("4210_5", "4211", prompt) is False
    assert same_numeral("P_1", "P", prompt) is None
    assert same_numeral("4210", "4210_5", prompt) is None


@pytest.mark.parametrize("between", [" ", "\n", "~", r"\ ", "("])
def test_what_is_no_numeral_is_told_at_once(between: str) -> None:
    began = time.process_time()
    assert numeral(f"4210{between * 250}x") is None
    assert time.process_time() - began < 0.5
