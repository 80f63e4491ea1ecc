"""JSON Lines and Parquet; CSV is in test_problems.py."""

import datetime
import io
import json
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.problems.rows import Columns, read
from rl.problems.tables import ProblemError, Table, file_format, read_csv, read_jsonl, read_parquet
from rl.records import Problem
from rl.verifiers.built_in import arithmetic, gsm8k

QUESTIONS = [("how many?", "#### 3", 1), ("and now?", "so 2 + 2\n#### 4", 2)]


def jsonl(*rows: Any) -> Table:
    return read_jsonl(io.StringIO("\n".join(map(json.dumps, rows))), "some/q.jsonl")


def parquet(columns: dict[str, Any], name: str = "some/q.parquet") -> Table:
    written = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), written)
    return read_parquet(io.BytesIO(written.getvalue()), name)


def unchecked(_: Problem) -> None: ...


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(("a.csv", "csv"), ("a", "csv"), ("a.csv.gz", "csv"), ("a.txt", "csv"), ("a.jsonl", "jsonl")),
        *(("a.JSONL.gz", "jsonl"), ("a.ndjson", "jsonl"), ("s3://b/a.json", "jsonl"), ("a.parquet", "parquet")),
        *(("a.parquet.zst", "parquet"), ("a.pq", "parquet")),
    ],
)
def test_the_ending_names_the_format(name: str, form: str) -> None:
    assert file_format(name) == form


def test_json_lines_and_parquet_hold_the_same_problems() -> None:
    rows = [{"question": q, "answer": a, "level": level} for q, a, level in QUESTIONS]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for table, name in ((jsonl(*rows), "q.jsonl"), (parquet(columns), "q.parquet")):
        problems = read(table, Columns(), gsm8k.check)
        assert problems == [Problem(q, a, f"{name}:{level}", {"level": level}) for q, a, level in QUESTIONS]


def test_columns_may_be_named_and_further_ones_keep_their_types() -> None:
    when = datetime.date(2026, 1, 2)
    table = parquet(
        {"q": ["x?"], "a": [1.5], "nums": [[1, 2]], "when": [when], "gone": [float("nan")], "m": [{"k": 1}]}
    )
    (problem,) = read(table, Columns("q", "a"), arithmetic.check)
    assert (problem.prompt, problem.target) == ("x?", "1.5")
    assert problem.extra == {"nums": [1, 2], "when": "2026-01-02", "gone": None, "m": {"k": 1}}
    assert read(jsonl({"q": "x?", "a": 7}), Columns("q", "a"), arithmetic.check)[0].target == "7"


def test_a_target_may_be_absent_where_the_verifier_needs_none() -> None:
    free = Columns(target_needed=False)
    (problem,) = read(jsonl({"prompt": "go", "gold": "1"}), free, unchecked)
    assert problem.target == ""
    assert problem.no_target == (
        "q.jsonl has no target column among ['prompt', 'gold']; name yours: --problems.target NAME"
    )
    assert read(jsonl({"prompt": "go", "answer": None}), free, unchecked)[0].no_target == ""
    assert read(jsonl({"prompt": "go", "answer": None}), free, unchecked)[0].target == ""
    assert read(jsonl({"prompt": "go", "answer": ["a", 1]}), free, unchecked)[0].target == '["a", 1]'
    with pytest.raises(ProblemError, match=r"q\.jsonl: line 1: no column 'answer'"):
        read(jsonl({"prompt": "go"}), Columns(), unchecked)
    with pytest.raises(ProblemError, match="no column 'wanted'"):
        read(jsonl({"prompt": "go"}), Columns(target="wanted", target_needed=False), unchecked)


def test_a_json_list_holds_what_its_lines_would() -> None:
    rows = [{"question": q, "answer": a, "level": level} for q, a, level in QUESTIONS]
    listed = read_jsonl(
        io.StringIO("\ufeff" + json.dumps([*rows, {"question": "", "answer": "1"}], indent=2)), "q.json"
    )
    assert list(listed.rows)[:2] == list(jsonl(*rows).rows)
    with pytest.raises(ProblemError, match=r"q\.json: row 3: question is empty"):
        read(listed, Columns(), gsm8k.check)
    for text, says in (("[", "line 1: not JSON"), ("[]", "line 1: holds a list"), ('[{"a": 1}, 2]', "holds a list")):
        with pytest.raises(ProblemError, match=says):
            read_jsonl(io.StringIO(text), "q.json")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"question": "x", "prompt": "y", "answer": "1"},
            "'question' and 'prompt' could both be meant; name one: --problems.prompt question",
        ),
        (
            {"problem": "x", "solution": "y", "answer": "1"},
            "'answer' and 'solution' could both be meant; name one: --problems.target answer",
        ),
        (
            {"q": "x", "a": "1"},
            "no column 'question' (nor problem, prompt, natural_language) among ['q', 'a']; name yours: --problems."
            "prompt NAME",
        ),
        ({"question": ["x"], "answer": "1"}, "line 1: question is ['x'], not text"),
        (
            {"question": [{"role": "system", "content": "Be."}, {"role": "user", "content": "x"}], "answer": "1"},
            "name the text in it: --problems.prompt question.1.content",
        ),
        ({"question": "", "answer": "1"}, "line 1: question is empty"),
        ({"question": "x", "answer": None}, "line 1: answer is empty"),
        ({"question": "x", "answer": "#### 3"}, "line 1: answer '#### 3' cannot be evaluated"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_in_one_line(row: dict[str, Any], says: str) -> None:
    with pytest.raises(ProblemError) as refused:
        read(jsonl(row), Columns(), arithmetic.check)
    assert str(refused.value).startswith("some/q.jsonl: ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_names_of_this_project_win_over_the_usual_ones() -> None:
    row = {"natural_language": "a", "question": "b", "python_expression": "1", "answer": "2"}
    (problem,) = read(jsonl(row), Columns(), arithmetic.check)
    assert (problem.prompt, problem.target) == ("a", "1")


NESTED = {"question": {"text": "x?", "lang": "en"}, "gold": {"answer": {"value": 7}}, "turns": [{"content": "y?"}]}


def test_a_dotted_path_names_a_value_within_a_column() -> None:
    for table in (jsonl(NESTED), parquet({name: [value] for name, value in NESTED.items()})):
        (problem,) = read(table, Columns("question.text", "gold.answer.value"), arithmetic.check)
        assert (problem.prompt, problem.target, problem.extra) == ("x?", "7", NESTED)
        (problem,) = read(table, Columns("turns.0.content", "gold.answer.value"), arithmetic.check)
        assert problem.prompt == "y?"
    (problem,) = read(jsonl({"a.b": "flat", "a": {"b": "deep"}, "c": "1"}), Columns("a.b", "c"), arithmetic.check)
    assert (problem.prompt, problem.extra) == ("flat", {"a": {"b": "deep"}})


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (Columns(None, "gold"), "line 1: question is {'text': 'x?', 'lang': 'en'}, not text; name the text in it: "
         "--problems.prompt question.text"),
        (Columns("question.txt", "gold"), "line 1: question has no 'txt' but ['text', 'lang']"),
        (Columns("question.text.more", "gold"), "line 1: question.text is 'x?', with no 'more' in it"),
        (Columns("turns.1.content", "gold"), "line 1: turns.1 is None, with no 'content' in it"),
        (Columns("questions.text", "gold"), "line 1: no column 'questions.text' among ['question', 'gold', 'turns']; "),
        (Columns("question.text", "gold.answer.values"), "line 1: gold.answer has no 'values' but ['value']"),
        (Columns("nope", options="mix[1]."), "name yours: mix[1].prompt NAME"),
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere_says_what_is_there(columns: Columns, says: str) -> None:
    with pytest.raises(ProblemError) as refused:
        read(jsonl(NESTED), columns, arithmetic.check)
    assert says in str(refused.value)


def test_a_row_of_parquet_is_named() -> None:
    table = parquet({"question": ["x", "y"], "answer": ["1", None]})
    with pytest.raises(ProblemError, match=r"^some/q\.parquet: row 2: answer is empty$"):
        read(table, Columns(), arithmetic.check)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ('{"a": 1}\n{"a":', "line 2: not JSON"),
        ('{"a": 1}\n{"a": "2"\n', "line 2: not JSON: Expecting ',' delimiter at column 10; one object"),
        ('{"a": "b\n}', "line 1: not JSON: Invalid control character at column 9; one object"),
        ("[1, 2]", "line 1: holds a list, not an object"),
        ('\n"text"', "line 2: holds text, not an object"),
        ("[" * 10**5, "line 1: not JSON: nested too deeply"),
        (f'{{"a": {"1" * 6000}}}', "line 1: not JSON: Exceeds the limit .* value has 6000 digits; one object"),
        (
            '{"a": "1"}\n{"a": {"b": ["cut \\ud83d"]}}',
            r"q\.jsonl: line 2: holds half of a character, such as \\ud83d alone",
        ),
        ('[{"a": "1"},\n {"\\uDE00": "cut"}]', "row 2: holds half of a character"),
        ("natural_language,python_expression\n1,1", "line 1: not JSON"),
    ],
)
def test_what_is_no_json_lines_is_refused(text: str, says: str) -> None:
    with pytest.raises(ProblemError, match=says):
        read_jsonl(io.StringIO(text), "q.jsonl")


def test_two_halves_are_a_character() -> None:
    table = read_jsonl(io.StringIO('{"a": "\\ud83d\\ude00"}\n{"a": "\\\\ud83d"}'), "q.jsonl")
    assert [row.fields["a"] for row in table.rows] == ["\U0001f600", "\\ud83d"]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"x" * 100 + b"PAR1", b"question,answer\nx,1\n"])
def test_what_is_no_parquet_is_refused(content: bytes) -> None:
    with pytest.raises(ProblemError, match=r"^q\.parquet: not a Parquet file that can be read: ") as refused:
        read_parquet(io.BytesIO(content), "q.parquet")
    assert "\n" not in str(refused.value)


@settings(max_examples=100, deadline=None, database=None)
@given(st.text() | st.text('{}[]:,"1\n\\u').map(lambda text: f'{{"question": "x", "answer": {text}}}'))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    for reader in (read_jsonl, read_csv):
        message = ""
        try:
            read(reader(io.StringIO(text, newline=""), "q"), Columns(), arithmetic.check)
        except ProblemError as refused:
            message = str(refused)
        assert "\n" not in message
