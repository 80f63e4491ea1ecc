import json
import re
from itertools import islice

from rl.environments.schema import fitted
from rl.model.tiny import build_tokenizer
from rl.problems.made.functions import FUNCTIONS, signature, stream
from rl.verifiers.built_in.functions import example
from tests.streams import drawing

draw = drawing(stream)


def test_each_call_fits_a_schema_that_is_shown() -> None:
    called = set()
    for problem in draw(0, 0, 500):
        shown = {tool["function"]["name"]: tool["function"]["parameters"] for tool in problem.extra["tools"]}
        for call in json.loads(problem.target):
            assert fitted(call["arguments"], shown[call["name"]]) == call["arguments"]
            assert call["arguments"].keys() == shown[call["name"]]["properties"].keys()
            called.add(call["name"])
        lines = problem.prompt.split("\n")
        assert set(lines[:-1]) == {signature(one) for one in FUNCTIONS if one.name in shown}
    assert called == {one.name for one in FUNCTIONS}


def test_values_are_those_of_the_request() -> None:
    for problem in draw(0, 1, 300):
        request = problem.prompt.rpartition("\n")[2]
        said = re.findall(r"\d+(?:\.\d+)?", request)
        made = re.findall(r"(?<![\w.])\d+(?:\.\d+)?", problem.target)
        assert sorted(said) == sorted(made), problem
        assert len(json.loads(problem.target)) in (1, 2)


def test_what_is_held_out_is_no_request_of_training() -> None:
    def requests(seed: int, step: int, side: str = "train") -> set[str]:
        return {problem.prompt.rpartition("\n")[2] for problem in draw(seed, step, 100, side=side)}

    held_out = requests(7, 0, "held_out")
    assert held_out.isdisjoint(set().union(*(requests(0, step) for step in range(5))))
    assert list(islice(stream(1, 2), 10))[:5] == list(islice(stream(1, 2), 5))


def test_the_tiny_tokenizer_can_write_the_calls() -> None:
    tokenizer = build_tokenizer()
    lengths = []
    for problem in draw(0, 2, 200):
        text = example(problem)
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in tokenizer(problem.prompt)["input_ids"]
        lengths.append(len(ids))
    assert sum(length < 40 for length in lengths) > 180  # 40 tokens is what it may write unless told otherwise
