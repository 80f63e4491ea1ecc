import csv
import gzip
import io
import pickle
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.problems.rows import Columns, split
from rl.problems.rows import read as read_table
from rl.problems.tables import ProblemError, read_csv
from rl.records import Problem
from rl.verifiers.built_in import arithmetic

MATH_1K = Path(__file__).parents[3] / "../shared/data/math_1k.csv"
HEADER = "python_expression,natural_language\n"


def read_lines(lines: Iterable[str], name: str) -> list[Problem]:
    return read_table(read_csv(lines, name), Columns(), arithmetic.check)


def read(text: str) -> list[Problem]:
    return read_lines(io.StringIO(text, newline=""), "sums.csv")


def numbered(count: int) -> list[Problem]:
    return [Problem(prompt=f"what is {n}?", target=str(n), source=f"sums.csv:{n}") for n in range(count)]


def test_columns_are_found_by_name_and_the_others_are_kept() -> None:
    text = 'level,natural_language,python_expression,note\n2,"add 1, then 2", 1 + 2 ,\n3,"say ""one""",1,"a\nb"\n'
    assert read_lines(io.StringIO(text), "some/folder/sums.csv") == [
        Problem(prompt="add 1, then 2", target="1 + 2", source="sums.csv:2", extra={"level": "2", "note": ""}),
        Problem(prompt='say "one"', target="1", source="sums.csv:3", extra={"level": "3", "note": "a\nb"}),
    ]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_line_ends_byte_order_marks_and_blank_lines_do_not_matter(line_end: str) -> None:
    text = '\ufeff"python_expression",natural_language\n\n1,one\n\n2,two\n\n'.replace("\n", line_end)
    assert [(problem.target, problem.prompt, problem.source) for problem in read(text)] == [
        ("1", "one", "sums.csv:3"),
        ("2", "two", "sums.csv:5"),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["sums.csv is empty", "names of the columns"]),
        ("\n\n", ["sums.csv is empty"]),
        (HEADER, ["sums.csv has column names but no problem"]),
        (HEADER + "\n\n", ["sums.csv has column names but no problem"]),
        (
            "python_expresion,natural_language\n1,one\n",
            ["line 1", "no column 'answer'", "is it --problems.target python_expresion?"],
        ),
        (
            "python_expression natural_language\n1 one\n",
            ["line 1", "no column 'question'", "python_expression natural"],
        ),
        (
            "python_expression,questions\n1,one\n",
            ["line 1", "no column 'question'", "'questions'", "is it --problems.prompt questions?"],
        ),
        ("1 + 1,add one and one\n", ["line 1", "no column", "'1 + 1'"]),
        ("x" * 5000 + "\n1\n", ["line 1", "no column", "…"]),
        ("python_expression,natural_language,natural_language\n", ["line 1", "'natural_language'", "more than once"]),
        (HEADER + "1,one\n2,two,too\n", ["line 3", "broken row: 3 fields", "2 columns"]),
        (HEADER + "1,one\n2\n", ["line 3", "broken row: 1 fields", "2 columns"]),
        (HEADER + '1,one\n2,"two\n3,three\n', ["line 3", "broken row", "quote"]),
        (HEADER + '1,one\n2,"two"!\n', ["line 3", "broken row"]),
        (HEADER + '1,"on\ne"\n2,\n', ["line 4", "natural_language is empty"]),
        (HEADER + " ,one\n", ["line 2", "python_expression is empty"]),
        (HEADER + "1,one\n2,t\0wo\n", ["line 3", "NUL"]),
        (HEADER + "1,one\n" + "2" * 200_000 + ",two\n", ["line 3", "broken row", "limit"]),
        (HEADER + "1,one\nforty-two,two\n", ["line 3", "'forty-two' cannot be evaluated", "forbidden"]),
        (HEADER + "1/0,one\n", ["line 2", "'1/0' cannot be evaluated", "division_by_zero"]),
        (HEADER + "9**9**9,one\n", ["line 2", "too_large"]),
        (HEADER + '"1\n+1",one\n', ["line 2", r"'1\n+1'", "unparsable"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_place(text: str, says: list[str]) -> None:
    with pytest.raises(ProblemError) as error:
        read(text)
    message = str(error.value)
    assert message.startswith("sums.csv")
    assert [part for part in says if part not in message] == []
    assert "\n" not in message
    assert len(message) < 300
    assert str(pickle.loads(pickle.dumps(error.value))) == message


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(("delimiter", "called"), [(",", "comma"), (";", "semicolon"), ("\t", "tab"), ("|", "bar")])
def test_the_delimiter_is_found(delimiter: str, called: str, line_end: str) -> None:
    def table(*rows: str) -> str:
        return line_end.join(row.replace("^", delimiter) for row in (*rows, ""))

    text = table('"question (a, b; c)"^question^answer', "", '1^"one^ or ""1""; a, b"^1', "2^two^2", '""^"3\n3"^3')
    assert [(problem.prompt, problem.target, problem.extra) for problem in read(text)] == [
        (f'one{delimiter} or "1"; a, b', "1", {"question (a, b; c)": "1"}),
        ("two", "2", {"question (a, b; c)": "2"}),
        ("3\n3", "3", {"question (a, b; c)": ""}),
    ]
    plain = table("question^answer", "one, two; three^3" if delimiter not in ",;" else '"one, two; three"^3')
    assert [(problem.prompt, problem.target) for problem in read(plain)] == [("one, two; three", "3")]
    with pytest.raises(ProblemError, match=f"line 3: broken row: 3 fields .* a {called} in it"):
        read(table("question^answer", "one^1", "two^2^2"))
    with pytest.raises(ProblemError, match=r"among \['frage', 'antwort'\]; name yours: --problems.prompt NAME"):
        read(table("frage^antwort", "one^1"))


def test_one_column_is_no_delimiter_to_find() -> None:
    free = Columns(target_needed=False)
    text = "prompt\nwrite; or not\nwrite; again\n"
    found = read_table(read_csv(io.StringIO(text), "p.csv"), free, lambda _: None)
    assert [problem.prompt for problem in found] == ["write; or not", "write; again"]


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    path.write_bytes(HEADER.encode() + b"1,one\n2,z\xfcrich\n")
    with path.open(encoding="utf-8", newline="") as lines, pytest.raises(ProblemError, match=r"sums\.csv: .*not UTF-8"):
        read_lines(lines, "sums.csv")


def test_an_open_compressed_file_is_text_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "sums.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(HEADER + "1,one\n")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        assert [problem.prompt for problem in read_lines(lines, "sums.csv.gz")] == ["one"]


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), words, words), min_size=1, max_size=8))
def test_whatever_the_csv_module_writes_comes_back(rows: list[tuple[int, str, str]]) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["natural_language", "python_expression", "note"])
    writer.writerows([f"q{prompt}?", target, note] for target, prompt, note in rows)
    file.seek(0)
    problems = read_lines(file, "sums.csv")
    assert [(int(problem.target), problem.prompt, problem.extra) for problem in problems] == [
        (target, f"q{prompt}?", {"note": note}) for target, prompt, note in rows
    ]


@settings(max_examples=300, deadline=None, database=None)
@given(st.text() | st.text('1,"\n\r\0\ufeff').map(lambda rows: HEADER + rows))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        problems = read(text)
    except ProblemError as refusal:
        problems = []
        message = str(refusal)
    else:
        message = ""
    assert bool(problems) != bool(message)
    assert message.splitlines() in ([], [message])


some_problems = st.lists(st.integers(0, 12), min_size=1, max_size=40).map(
    lambda prompts: [
        Problem(prompt=f"what is {n}?", target=str(n), source=f"sums.csv:{row}") for row, n in enumerate(prompts)
    ]
)


@settings(max_examples=200, deadline=None, database=None)
@given(some_problems, st.data())
def test_a_split_shares_no_prompt_loses_nothing_and_ignores_the_order_of_the_file(
    problems: list[Problem], data: st.DataObject
) -> None:
    held_out = data.draw(st.integers(0, len({problem.prompt for problem in problems}) - 1))
    train, test = split(problems, held_out)
    prompts_of_train = {problem.prompt for problem in train}
    prompts_of_test = {problem.prompt for problem in test}
    assert not prompts_of_train & prompts_of_test
    assert len(prompts_of_test) == held_out
    assert train
    assert Counter(problem.source for problem in train + test) == Counter(problem.source for problem in problems)
    shuffled = split(data.draw(st.permutations(problems)), held_out)
    assert [[problem.prompt for problem in side] for side in shuffled] == [
        [problem.prompt for problem in side] for side in (train, test)
    ]


def test_more_held_out_keeps_what_was_held_out() -> None:
    few, many = split(numbered(50), 5)[1], split(numbered(50), 20)[1]
    assert many[:5] == few


@pytest.mark.parametrize(("count", "held_out"), [(3, 3), (3, 4), (1, 1), (0, 0), (3, -1)])
def test_a_split_that_leaves_nothing_is_refused(count: int, held_out: int) -> None:
    with pytest.raises(ProblemError, match=f"cannot hold out {held_out} of {count} distinct prompts"):
        split(numbered(count), held_out)


def test_repeats_of_one_prompt_are_not_enough_to_divide() -> None:
    with pytest.raises(ProblemError, match="1 of 1 distinct"):
        split(numbered(1) * 9, 1)


@pytest.mark.skipif(not MATH_1K.exists(), reason="real problems are not there: ../shared/data/math_1k.csv")
def test_problems_that_others_wrote() -> None:
    with MATH_1K.open(encoding="utf-8", newline="") as lines:
        problems = read_lines(lines, str(MATH_1K))
    assert len(problems) == 1000
    assert problems[0].source == "math_1k.csv:2"
    assert all(arithmetic.verify(problem, str(eval(problem.target))).reason == "right" for problem in problems)
    train, held_out = split(problems, 200)
    assert (len(train), len(held_out)) == (800, 200)
