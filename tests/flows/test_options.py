import argparse
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from flows.commands.parser import OneLineParser
from flows.options.reading import OptionError, add_options, differences, read_config, to_yaml


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Loss(Section):
    """How an update is computed."""

    name: Literal["reinforce", "grpo"] = Field("reinforce", description="which objective")
    clip: float = Field(0.2, description="half-width of the clip range, 20% unless said", gt=0, le=1)


class Policy(Section):
    shorthand: ClassVar[str] = "model"
    model: str = Field("tiny", description="a built-in name or a folder")
    device: Literal["cuda", "cpu"] | None = Field(None, description="where it runs")


class Deep(Section):
    roles: tuple[Literal["GENERATOR", "TRAINER"], ...] = Field(("TRAINER",), description="role tags")
    threads: int | None = Field(None, description="threads for each worker", ge=1)


class Cluster(Section):
    address: str | None = Field(None, description="of a scheduler that runs already")
    tags: tuple[str, ...] = Field((), description="what workers offer")
    worker: Deep = Field(Deep(threads=2), description="one worker")

    @field_validator("address")
    @classmethod
    def _has_a_port(cls, address: str | None) -> str | None:
        if address is not None and ":" not in address:
            raise ValueError("has no port; write host:port")
        return address


class Critic(Section):
    lr: float = Field(1e-4, description="learning rate", gt=0, allow_inf_nan=False)
    layers: int = Field(2, description="depth")


class Job(Section):
    steps: int = Field(10, description="how many updates", ge=1)
    deterministic: bool = Field(False, description="bit-identical runs")
    wait: Literal["auto"] | float = Field("auto", description="seconds, or auto")
    loss: Loss = Field(Loss(name="grpo"), description="the objective")
    policy: Policy = Policy()
    cluster: Cluster = Field(default_factory=Cluster, description="the machines")
    critic: Critic | None = Field(None, description="a value model")

    @model_validator(mode="after")
    def _enough_steps(self) -> "Job":
        if self.critic is not None and self.steps < 2:
            raise ValueError("steps: 1 is too few with a critic; give at least 2")
        return self


class Wanted(Section):
    source: str = Field(description="a CSV file")


class Required(Section):
    problems: Wanted
    name: str


def parsed(*words: str, model: type[BaseModel] = Job) -> Any:
    parser = OneLineParser(prog="rlvf train")
    add_options(parser, model)
    args = parser.parse_args(words)
    return read_config(model, file=args.config, overrides=args.overrides)


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


def mistake(tmp_path: Path, text: str = "{}", model: type[BaseModel] = Job, **overrides: str) -> str:
    """The error of a YAML file and overrides (`loss__name` for loss.name), the file called my.yaml in it."""
    file = tmp_path / "my.yaml"
    file.write_text(text)
    dotted = {path.replace("__", "."): value for path, value in overrides.items()}
    with pytest.raises(OptionError) as error:
        read_config(model, file=str(file), overrides=dotted)
    return str(error.value).replace(str(file), "my.yaml")


def test_defaults_are_the_models_own() -> None:
    assert parsed() == Job()


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["--steps", "3"], "steps", 3),
        (["--steps=3"], "steps", 3),
        (["--steps", "3", "--steps", "4"], "steps", 4),
        (["--deterministic", "true"], "deterministic", True),
        (["--deterministic=false"], "deterministic", False),
        (["--wait", "1.5"], "wait", 1.5),
        (["--wait", "auto"], "wait", "auto"),
        (["--loss.clip", "1e-1"], "loss.clip", 0.1),
        (["--policy.device", "cpu"], "policy.device", "cpu"),
        (["--policy.device", "None"], "policy.device", None),
        (["--cluster.tags", "CUDA, A=b"], "cluster.tags", ("CUDA", "A=b")),
        (["--cluster.tags="], "cluster.tags", ()),
        (["--cluster.worker.roles", "GENERATOR"], "cluster.worker.roles", ("GENERATOR",)),
        (["--cluster.worker.threads", "null"], "cluster.worker.threads", None),
        (["--policy", "tiny2"], "policy.model", "tiny2"),
        (["--policy=a=b"], "policy.model", "a=b"),
        (["--policy", "a", "--policy.model", "b"], "policy.model", "b"),
        (["--policy.model", "b", "--policy", "a"], "policy.model", "a"),
        (["--policy", "none"], "policy.model", "none"),
        (["--critic.layers", "5"], "critic", Critic(layers=5)),
        (["--critic.layers", "5", "--critic", "none"], "critic", None),
    ],
)
def test_a_word_of_the_command_line_becomes_its_fields_type(words: list[str], path: str, value: Any) -> None:
    found: Any = parsed(*words)
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_an_override_keeps_what_the_section_s_own_default_says_beside_it() -> None:
    assert parsed("--loss.clip", "0.5").loss == Loss(name="grpo", clip=0.5)
    assert parsed("--cluster.tags", "X").cluster.worker == Deep(threads=2)


def test_help_shows_sections_types_choices_bounds_defaults_and_descriptions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        parsed("--help")
    text = " ".join(capsys.readouterr().out.split())
    for expected in [
        "usage: rlvf train [options] options:",
        "--config FILE.yaml a file of the settings below; options win over it",
        "--steps INT how many updates (at least 1, default 10)",
        "--deterministic {true,false} bit-identical runs (default false)",
        "--wait {auto}|NUMBER seconds, or auto (default auto)",
        "loss: the objective --loss.name",
        "--loss.name {reinforce,grpo} which objective (default grpo)",
        "half-width of the clip range, 20% unless said (above 0, at most 1, default 0.2)",
        "--policy TEXT a built-in name or a folder (default tiny)",
        "--policy.model TEXT the same as --policy",
        "--policy.device {cuda,cpu}|null where it runs (default null)",
        "--cluster.tags A,B what workers offer (default empty)",
        "cluster.worker: one worker --cluster.worker.roles",
        "--cluster.worker.roles {GENERATOR,TRAINER},... role tags (default TRAINER)",
        "--cluster.worker.threads INT|null threads for each worker (at least 1, default 2)",
        "--critic null do without",
        "--critic.lr NUMBER learning rate (above 0, default 0.0001)",
    ]:
        assert expected in text


def test_help_of_a_required_option_says_so() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, Required)
    assert "a CSV file (required)" in parser.format_help()


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
    line = refused(capsys, "--loss.clip", "-1e-3")
    assert line == "argument --loss.clip: expected one argument (one that starts with a minus sign is written after =)"
    with pytest.raises(OptionError, match=r"^--loss.clip: '-1e-3' is not allowed"):
        parsed("--loss.clip=-1e-3")


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
        ({"wait": "soon"}, "--wait: 'soon' is not allowed; give one of auto or a number"),
        ({"policy__device": "tpu"}, "--policy.device: 'tpu' is not allowed; give one of cuda, cpu or null"),
        (
            {"cluster__worker__roles": "TRAINER,COOK"},
            "--cluster.worker.roles: 'COOK' is not allowed; give a comma-separated list of GENERATOR, TRAINER",
        ),
        ({"cluster__address": "here"}, "--cluster.address 'here': has no port; write host:port"),
        ({"critic__lr": "inf"}, "--critic.lr: 'inf' is not allowed; give a number, above 0, finite"),
        ({"critic__lr": "1", "steps": "1"}, "steps: 1 is too few with a critic; give at least 2"),
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


def test_what_is_missing_is_asked_for_by_its_option(tmp_path: Path) -> None:
    assert mistake(tmp_path, model=Required).splitlines() == [
        "problems.source is missing: give --problems.source, or problems.source in the file of --config",
        "name is missing: give --name, or name in the file of --config",
    ]
    assert parsed("--problems.source", "a.csv", "--name", "x", model=Required).problems.source == "a.csv"


def test_later_layers_win_over_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("policy: from-file\nloss:\n  clip: 0.3\ncluster.tags: A,B\ncritic:\n  lr: 1e-6\n")
    base = {"steps": 5, "policy": {"model": "from-base", "device": "cpu"}, "loss": {"clip": 0.9}, "critic": None}
    config = read_config(Job, file=str(file), overrides={"loss.clip": "0.4"}, base=base)
    assert config == Job(
        steps=5,
        policy=Policy(model="from-file", device="cpu"),
        loss=Loss(name="grpo", clip=0.4),
        cluster=Cluster(tags=("A", "B")),
        critic=Critic(lr=1e-6),
    )
    assert read_config(Job, file=str(file), overrides={"critic": "null"}).critic is None


def test_a_section_with_nothing_below_it_keeps_its_defaults(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("loss:\n  # clip: 0.3\npolicy:\nsteps: 3\n")
    assert read_config(Job, file=str(file), overrides={}) == Job(steps=3)


def test_an_unknown_key_of_the_base_is_not_blamed_on_the_user() -> None:
    with pytest.raises(OptionError, match=r"^saved configuration: unknown key loss\.nam; did you mean loss\.name\?$"):
        read_config(Job, file=None, overrides={}, base={"loss": {"nam": "grpo"}})


def test_the_file_may_be_any_fsspec_path(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("steps: 3")
    assert read_config(Job, file=(tmp_path / "my.yaml").as_uri(), overrides={}).steps == 3


def test_differences_are_listed_by_dotted_path() -> None:
    saved = Job(loss=Loss(name="reinforce"))
    now = Job(critic=Critic(), cluster=Cluster(tags=("A",)))
    assert differences(saved, saved) == []
    assert differences(saved, now) == [
        "loss.name: saved 'reinforce', now 'grpo'",
        "cluster.tags: saved (), now ('A',)",
        "critic: saved None, now absent",
        "critic.lr: saved absent, now 0.0001",
        "critic.layers: saved absent, now 2",
    ]


def test_a_field_without_a_notation_is_refused_when_the_options_are_made() -> None:
    class Odd(Section):
        table: dict[str, str] = {}

    with pytest.raises(TypeError, match=r"Odd\.table: no command-line notation"):
        add_options(OneLineParser(), Odd)


jobs = st.builds(
    Job,
    steps=st.integers(2),
    deterministic=st.booleans(),
    wait=st.just("auto") | st.floats(allow_nan=False),
    loss=st.builds(Loss, clip=st.floats(0, 1, exclude_min=True)),
    policy=st.builds(Policy, model=st.text(), device=st.sampled_from([None, "cuda", "cpu"])),
    cluster=st.builds(
        Cluster,
        address=st.none() | st.text().map(lambda host: f"{host}:1"),
        tags=st.lists(st.text()).map(tuple),
        worker=st.builds(Deep, threads=st.none() | st.integers(1)),
    ),
    critic=st.none() | st.builds(Critic, lr=st.floats(0, 1e300, exclude_min=True)),
)


@settings(deadline=None)  # of a shared machine
@given(jobs)
def test_a_configuration_survives_yaml(tmp_path_factory: pytest.TempPathFactory, job: Job) -> None:
    text = to_yaml(job)
    file = tmp_path_factory.mktemp("yaml") / "config.yaml"
    file.write_text(text, encoding="utf-8")
    assert read_config(Job, file=str(file), overrides={}) == job
    assert read_config(Job, file=None, overrides={}, base=yaml.safe_load(text)) == job
    assert differences(read_config(Job, file=str(file), overrides={}), job) == []


# -- a list of sections


class Several(Section):
    first: Policy = Policy()
    more: tuple[Wanted, ...] = Field((), description="further ones")
    policies: tuple[Loss, ...] = Field((Loss(),), description="a list with a default")


@pytest.mark.parametrize(
    ("words", "sources"),
    [
        ([], []),
        (["--more", "[{source: a.csv}, {source: 'b, c.csv'}]"], ["a.csv", "b, c.csv"]),
        (["--more", '[{"source": "a.csv"}]'], ["a.csv"]),
        (["--more", "{source: a.csv}"], ["a.csv"]),
        (["--more", "[]"], []),
        (["--more", ""], []),
        (["--more", "[{source: a.csv}]", "--more", "[{source: b.csv}]"], ["b.csv"]),
    ],
)
def test_a_list_of_sections_is_written_in_yaml(words: list[str], sources: list[str]) -> None:
    config = parsed(*words, model=Several)
    assert [each.source for each in config.more] == sources
    assert config.policies == (Loss(),)


def test_a_list_of_sections_survives_a_file(tmp_path: Path) -> None:
    config = Several(more=(Wanted(source="a"), Wanted(source="b")), policies=(Loss(clip=0.5),))
    file = tmp_path / "saved.yaml"
    file.write_text(to_yaml(config))
    assert read_config(Several, file=str(file), overrides={}) == config
    again = read_config(Several, file=None, overrides={"more": "[]"}, base=yaml.safe_load(to_yaml(config)))
    assert again == config.model_copy(update={"more": ()})
    assert [line.partition(":")[0] for line in differences(config, again)] == ["more"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("[{source: 1}]", "--more[0].source: 1 is not allowed; give text"),
        ("[{source: a}, {}]", "--more[1].source is missing"),
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


def test_the_help_of_a_list_of_sections_says_how_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help", model=Several)
    shown = " ".join(capsys.readouterr().out.split())
    assert "--more YAML further ones (default empty)" in shown
    assert "--policies YAML a list with a default (default {})" in shown
