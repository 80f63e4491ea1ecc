"""What cannot be read is said in a line that names the option, the value and what is allowed."""

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import create_model

from flows.commands.parser import OneLineParser
from flows.options.reading import OptionError, add_options, read_config
from tests.flows.options.job import Job, Policy, Section, Several, parsed


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    parser = OneLineParser(prog="rlvf")
    train = parser.add_subparsers(dest="command", required=True).add_parser("train")
    add_options(train, Job)
    with pytest.raises(SystemExit) as stopped:
        parser.parse_args(["train", *words])
    printed = capsys.readouterr()
    assert stopped.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("rlvf: ")
    assert printed.err.count("\n") == 1
    return printed.err[len("rlvf: ") : -1]


def mistake(tmp_path: Path, text: str = "{}", **overrides: str) -> str:
    """The error of a YAML file and overrides (`loss__name` for loss.name), the file called my.yaml in it."""
    file = tmp_path / "my.yaml"
    file.write_text(text)
    dotted = {path.replace("__", "."): value for path, value in overrides.items()}
    with pytest.raises(OptionError) as error:
        read_config(Job, file=str(file), overrides=dotted)
    return str(error.value).replace(str(file), "my.yaml")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--los.name", "grpo"], "unknown option --los.name; did you mean --loss.name?"),
        (["--los.name=grpo"], "unknown option --los.name; did you mean --loss.name?"),
        (["--lr", "1"], "unknown option --lr; did you mean --critic.lr?"),
        (["--step", "3"], "unknown option --step; did you mean --steps?"),
        (["--zzzzzz", "3"], "unknown option --zzzzzz"),
        (["--confg", "x.yaml"], "unknown option --confg; did you mean --config?"),
        (["stray"], "unexpected argument 'stray'; `rlvf train --help` lists what there is"),
    ],
)
def test_an_unknown_option_is_one_line_with_the_nearest_known_one(
    capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert refused(capsys, *words) == line


def test_a_value_that_looks_like_an_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "--loss.clip", "-inf")
    assert line == "argument --loss.clip: expected one argument (one that starts with a minus sign is written after =)"
    for given in (["--loss.clip", "-1e-3"], ["--loss.clip=-inf"]):  # a number is taken for no option
        with pytest.raises(OptionError, match=r"^--loss.clip: '-(1e-3|inf)' is not allowed"):
            parsed(*given)


def test_an_error_of_several_lines_is_printed_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        OneLineParser(prog="x").error("one\n  two\n")
    assert capsys.readouterr().err == "rlvf: one; two\n"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"loss__name": "ppo"}, "--loss.name: 'ppo' is not allowed; give one of reinforce, grpo"),
        ({"steps": "0"}, "--steps: '0' is not allowed; give a whole number, at least 1"),
        ({"steps": "1.5"}, "--steps: '1.5' is not allowed; give a whole number, at least 1"),
        ({"steps": "null"}, "--steps: 'null' is not allowed; give a whole number, at least 1"),
        ({"deterministic": "maybe"}, "--deterministic: 'maybe' is not allowed; give true or false"),
        ({"loss__clip": "7"}, "--loss.clip: '7' is not allowed; give a number, above 0, at most 1"),
        ({"policy__device": "tpu"}, "--policy.device: 'tpu' is not allowed; give one of cuda, cpu or null"),
        (
            {"cluster__worker__roles": "TRAINER,COOK"},
            "--cluster.worker.roles: 'COOK' is not allowed; give a comma-separated list of GENERATOR, TRAINER",
        ),
        ({"cluster__address": "here"}, "--cluster.address 'here': has no port; write host:port"),
        ({"critic__lr": "inf"}, "--critic.lr: 'inf' is not allowed; give a number, above 0, finite"),
        ({"critic__layers": "9", "steps": "1"}, "steps: 1 is too few for so deep a critic; give at least 2"),
        ({"loss": "grpo"}, "--loss: 'grpo' is not allowed; it is a section: give loss.name, loss.clip"),
        ({"los__name": "grpo"}, "unknown option --los.name; did you mean --loss.name?"),
    ],
)
def test_an_override_that_is_refused_names_field_value_and_what_is_allowed(
    tmp_path: Path, overrides: dict[str, str], line: str
) -> None:
    assert mistake(tmp_path, **overrides) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("los: {nam: grpo}", "my.yaml: unknown key los.nam; did you mean loss.name?"),
        ("loss.nam: grpo", "my.yaml: unknown key loss.nam; did you mean loss.name?"),
        ("zzzzzz: {}", "my.yaml: unknown key zzzzzz"),
        ("3: 4", "my.yaml: unknown key 3"),
        ("loss: {name: ppo}", "my.yaml: loss.name: 'ppo' is not allowed; give one of reinforce, grpo"),
        ("loss: [a]", "my.yaml: loss: ['a'] is not allowed; it is a section: give loss.name, loss.clip"),
        ("steps: {a: 1}", "my.yaml: steps: {'a': 1} is not allowed; give a whole number, at least 1"),
        ("policy: 7", "my.yaml: policy.model: 7 is not allowed; give text"),
        ("loss: {clip: 1, clip: 2}", "my.yaml: not valid YAML: line 1, column 17: key clip appears twice"),
        ("a: b: c", "my.yaml: not valid YAML: line 1, column 5: mapping values are not allowed here"),
        ("steps: [1", "my.yaml: not valid YAML: line 1, column 10: expected ',' or ']', but got '<stream end>'"),
        ("? [a]\n: 1", "my.yaml: not valid YAML: line 1, column 3: found unhashable key"),
        ("", "my.yaml: is empty; write settings into it, or leave out --config"),
        ("# only a comment\n", "my.yaml: is empty; write settings into it, or leave out --config"),
        ("- steps", "my.yaml: holds list, not settings as `name: value`"),
        ("steps", "my.yaml: holds str, not settings as `name: value`"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_the_file(tmp_path: Path, text: str, line: str) -> None:
    assert mistake(tmp_path, text) == line


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.yaml: no such file$"):
        read_config(Job, file=str(tmp_path / "none.yaml"), overrides={})
    with pytest.raises(OptionError, match=r": cannot be read: "):
        read_config(Job, file=str(tmp_path), overrides={})
    with pytest.raises(OptionError, match=r"^nowhere://x\.yaml: cannot be read: .*nowhere"):
        read_config(Job, file="nowhere://x.yaml", overrides={})
    (tmp_path / "latin.yaml").write_bytes(b"run: \xe9t\xe9")
    with pytest.raises(OptionError, match=r"latin\.yaml: not valid YAML: [^\n]*$"):
        read_config(Job, file=str(tmp_path / "latin.yaml"), overrides={})


def test_several_mistakes_are_a_line_each_in_the_order_of_the_layers(tmp_path: Path) -> None:
    assert mistake(tmp_path, "stepz: 1", los__name="x").splitlines() == [
        "my.yaml: unknown key stepz; did you mean steps?",
        "unknown option --los.name; did you mean --loss.name?",
    ]
    assert mistake(tmp_path, "{steps: 0, loss: {clip: 2}}", loss__name="x").splitlines() == [
        "my.yaml: steps: 0 is not allowed; give a whole number, at least 1",
        "--loss.name: 'x' is not allowed; give one of reinforce, grpo",
        "my.yaml: loss.clip: 2 is not allowed; give a number, above 0, at most 1",
    ]


@pytest.mark.parametrize(
    ("kind", "default", "why"),
    [
        (Any, None, "no command-line notation"),
        (Policy | None, None, "no command-line notation"),
        (Literal["auto"] | float, "auto", "no command-line notation"),
        (str, ..., "has no default"),
    ],
    ids=["anything", "section or null", "choice of types", "required"],
)
def test_a_field_that_no_configuration_has_is_refused_when_the_options_are_made(
    kind: Any, default: Any, why: str
) -> None:
    odd = create_model("Odd", __base__=Section, field=(kind, default))
    with pytest.raises(TypeError, match=rf"Odd\.field: {why}"):
        add_options(OneLineParser(), odd)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("[{source: 1}]", "--more[0].source: 1 is not allowed; give text"),
        ("[{source: a}, {source: [b]}]", "--more[1].source: ['b'] is not allowed; give text"),
        ("[{sauce: a, source: b}]", "--more[0].sauce (did you mean source?): Extra inputs are not permitted"),
        ("[1]", "--more[0]: Input should be a valid dictionary or instance of Wanted"),
        ("[{source", "--more: '[{source' is not allowed; give a list in YAML, such as [{source: …}]"),
        ("7", "--more: 7 is not allowed; give a list in YAML, such as [{source: …}]"),
    ],
)
def test_a_mistake_in_a_list_of_sections_names_its_place(given: str, line: str) -> None:
    with pytest.raises(OptionError) as refused:
        parsed("--more", given, model=Several)
    assert str(refused.value) == line
