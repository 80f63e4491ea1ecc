import io
import json
from typing import Any

import pytest

from rl.problems.examples import CHOSEN, COMPLETION, REJECTED, Example, ExampleColumns, read_examples, with_words
from rl.problems.tables import ProblemError, Table, read_csv, read_jsonl
from rl.records import Instructions

SHOWN = ExampleColumns(None, (("completion", None, COMPLETION),))
PAIRS = ExampleColumns(None, (("chosen", None, CHOSEN), ("rejected", None, REJECTED)))


def table(*rows: dict[str, Any]) -> Table:
    return read_jsonl(io.StringIO("".join(json.dumps(row) + "\n" for row in rows)), "d/q.jsonl")


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.mark.parametrize("prompt", ["prompt", "question", "instruction", "natural_language"])
@pytest.mark.parametrize("completion", ["completion", "response", "answer", "output"])
def test_demonstrations_are_found_by_the_usual_names(prompt: str, completion: str) -> None:
    [example] = read_examples(table({prompt: " why? ", completion: " because\n", "id": 7}), SHOWN)
    assert example == Example("why?", " because\n", "q.jsonl:1", completions=(" because\n",))


def test_columns_are_named() -> None:
    columns = ExampleColumns("a", (("completion", "b.text", COMPLETION),))
    [example] = read_examples(table({"a": "1", "b": {"text": "2"}, "prompt": "x", "completion": "y"}), columns)
    assert (example.prompt, example.completions) == ("1", ("2",))
    rows = read_csv(io.StringIO("q,good,bad\n1,2,3\n"), "p.csv")
    named = ExampleColumns("q", (("chosen", "good", CHOSEN), ("rejected", "bad", REJECTED)))
    assert read_examples(rows, named)[0].completions == ("2", "3")


def test_a_chat_is_its_last_turn_behind_the_others() -> None:
    turns = [said("system", "Be brief."), said("user", "1?"), said("assistant", "one"), said("user", "2?")]
    [example] = read_examples(table({"messages": [*turns, said("assistant", "two")]}), SHOWN)
    assert example.prompt == "2?"
    assert example.completions == ("two",)
    assert example.instructions == Instructions("Be brief.", (("1?", "one"),), required=True)


@pytest.mark.parametrize("how", ["implicit", "explicit"])
def test_pairs_may_be_chats(how: str) -> None:
    """As TRL's data sets have them: with the prompt in both, or beside them."""
    asked = [said("user", "1?")]
    before = asked if how == "implicit" else []
    row = {name: [*before, said("assistant", words)] for name, words in (("chosen", "one"), ("rejected", "two"))}
    [example] = read_examples(table(row | ({} if how == "implicit" else {"prompt": asked})), PAIRS)
    assert (example.prompt, example.completions, example.instructions) == ("1?", ("one", "two"), None)


def test_words_of_the_whole_set_leave_a_chats_own() -> None:
    chat = [said("system", "mine"), said("user", "1?"), said("assistant", "one")]
    own, none = read_examples(table({"messages": chat}, {"messages": chat[1:]}), SHOWN)
    assert [each.instructions.system for each in with_words([own, none], "all", None) if each.instructions] == [
        "mine",
        "all",
    ]
    assert with_words([none], None, None) == [none]


@pytest.mark.parametrize(
    ("columns", "row", "words"),
    [
        (SHOWN, {"prompt": "1"}, "q.jsonl: line 1: no column 'completion' (nor response, answer, output) among"),
        (SHOWN, {"completion": "1"}, "no column 'prompt' (nor question"),
        (SHOWN, {"prompt": "1", "completion": " \n"}, "d/q.jsonl: line 1: completion is empty"),
        (SHOWN, {"prompt": "", "completion": "2"}, "d/q.jsonl: line 1: prompt is empty"),
        (SHOWN, {"prompt": "1", "completion": None}, "completion is empty"),
        (SHOWN, {"prompt": "1", "completion": 3}, "completion is 3, neither text nor a list of turns"),
        (SHOWN, {"messages": [said("user", "1")]}, "messages ends with a turn of 'user'"),
        (SHOWN, {"messages": [said("assistant", "1")]}, "expected turns of user and assistant"),
        (SHOWN, {"messages": [{"role": "tool", "content": "1"}]}, "messages has a turn {'role': 'tool'"),
        (SHOWN, {"messages": [said("user", "1"), said("assistant", "")]}, "messages has an empty turn"),
        (PAIRS, {"prompt": "1", "chosen": "2"}, "no column 'rejected' among"),
        (PAIRS, {"prompt": "1", "chosen": "2", "rejected": "2 "}, "chosen and rejected are the same, '2': nothing to"),
        (
            PAIRS,
            {name: [said("user", name), said("assistant", name)] for name in ("chosen", "rejected")},
            "chosen and rejected do not answer the same prompt",
        ),
    ],
)
def test_what_is_wrong_is_said(columns: ExampleColumns, row: dict[str, Any], words: str) -> None:
    with pytest.raises(ProblemError) as raised:
        read_examples(table(row), columns)
    assert words in str(raised.value)


def test_what_could_be_either_is_asked() -> None:
    with pytest.raises(ProblemError, match="'response' and 'answer' could both be meant; name one"):
        read_examples(table({"prompt": "1", "response": "2", "answer": "3"}), SHOWN)
