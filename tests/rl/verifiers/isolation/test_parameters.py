"""A function of the user's whose parameters are named for something else than what it is called with is refused."""

import sys

import pytest

from rl.judging import judge
from rl.records import Problem
from rl.verifiers.isolation.child import load
from rl.verifiers.spec import VerifierError, VerifierSpec

REFUSED = [
    "completion, problem",
    "completion, answer",
    "completions, answers",
    "completion: str, answer: str = ''",
    "response, row",
    "answer, problem",
    "answer, x",
    "solution, ground_truth",
    "solution_str, ground_truth, method='strict'",
    "model_output, expected",
    "prediction, label",
    "generated, reference",
    "text, target",
    "Completion, c",
    "x, problem",
    "a, prompt",
    "p, question",
    "problem, ground_truth",
    "problem, expected",
    "row, target_text, /",
    "p, problem_text",
    "completion, *rest",
]
FINE = [
    "problem, completion",
    "problem, completion='', seed=0",
    "problem: dict, answer: str",
    "problem, response",
    "row, text",
    "problem, answer_text",
    "problem, query",
    "example, output",
    "sample, prediction",
    "prompt, solution",
    "question, answer",
    "p, c",
    "a, x",
    "item, _",
    "problem_text, model_output",
    "answer_key, response",
    "answered_row, x",
    "question_and_answer, predicted_label",
    "context, texture",
    "*args",
    "*answer",
    "problem, *completions",
    "problem, completion, *, target=None, label=''",
]


@pytest.fixture(autouse=True)
def _own_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifier", sys)  # put back afterwards


@pytest.mark.parametrize("parameters", REFUSED)
def test_parameters_in_another_order_are_refused(parameters: str) -> None:
    with pytest.raises(TypeError, match=r"write: def score\(problem, completion\)") as refused:
        load(f"def score({parameters}): return 0\n", "r.py", "score")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("parameters", FINE)
def test_parameters_in_order_or_whose_names_say_nothing_are_taken(parameters: str) -> None:
    assert load(f"def score({parameters}): return 0\n", "r.py", "score").__name__ == "score"


WRAPPER = """
from functools import wraps
def wrapped(function):
    @wraps(function)
    def call(PARAMETERS): return function(ARGUMENTS)
    return call
@wrapped
def score(completion, answer): return float(completion == answer)
"""


def test_a_wrapper_that_puts_them_in_order_is_taken_and_one_that_passes_them_on_is_not() -> None:
    adapting = WRAPPER.replace("PARAMETERS", "problem, text").replace("ARGUMENTS", "text, problem.target")
    assert load(adapting, "r.py", "score")(Problem("", "4", "s:1"), "4") == 1.0
    with pytest.raises(TypeError, match=r"score\(completion, answer\)"):
        load(WRAPPER.replace("PARAMETERS", "*args").replace("ARGUMENTS", "*args"), "r.py", "score")


def test_a_wrapper_written_in_c_is_looked_through() -> None:
    text = "from functools import lru_cache\n@lru_cache\ndef score(PARAMETERS): return 0\n"
    load(text.replace("PARAMETERS", "problem, completion"), "r.py", "score")
    with pytest.raises(TypeError, match=r"score\(completion, answer\)"):
        load(text.replace("PARAMETERS", "completion, answer"), "r.py", "score")


def test_the_self_of_an_object_is_not_counted() -> None:
    text = "class Judge:\n    def __call__(self, PARAMETERS): return 0\nscore = Judge()\n"
    load(text.replace("PARAMETERS", "problem, completion"), "r.py", "score")
    with pytest.raises(TypeError, match=r"score\(response, target\)"):
        load(text.replace("PARAMETERS", "response, target"), "r.py", "score")


def test_it_is_refused_before_a_completion_is_judged() -> None:
    text = "def reward(completion, answer):\n    return float(completion == answer)\n"
    with pytest.raises(VerifierError, match=r"r\.py: TypeError: reward\(completion, answer\) is given"):
        judge(
            [Problem("2 + 2", "4", "s:1")],
            [["4", "5"]],
            {"": VerifierSpec(name="r.py:reward", seconds=5.0, memory_mb=512, text=text)},
        )
