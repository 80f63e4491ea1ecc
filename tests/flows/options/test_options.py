from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.options.reading import OptionError, differences, read_config, to_yaml
from tests.flows.options.job import Cluster, Critic, Deep, Job, Loss, Policy, Several, Wanted, parsed


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
        "--critic.lr NUMBER learning rate (above 0, default 0.0001)",
    ]:
        assert expected in text


def test_later_layers_win_over_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("policy: from-file\nloss:\n  clip: 0.3\ncluster.tags: A,B\ncritic:\n  lr: 1e-6\n")
    base = {"steps": 5, "policy": {"model": "from-base", "device": "cpu"}, "loss": {"clip": 0.9}}
    config = read_config(Job, file=str(file), overrides={"loss.clip": "0.4"}, base=base)
    assert config == Job(
        steps=5,
        policy=Policy(model="from-file", device="cpu"),
        loss=Loss(name="grpo", clip=0.4),
        cluster=Cluster(tags=("A", "B")),
        critic=Critic(lr=1e-6),
    )


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
    now = Job(critic=Critic(layers=3), cluster=Cluster(tags=("A",)))
    assert differences(saved, saved) == []
    assert differences(saved, now) == [
        "loss.name: saved 'reinforce', now 'grpo'",
        "cluster.tags: saved (), now ('A',)",
        "critic.layers: saved 2, now 3",
    ]


jobs = st.builds(
    Job,
    steps=st.integers(2),
    deterministic=st.booleans(),
    loss=st.builds(Loss, clip=st.floats(0, 1, exclude_min=True)),
    policy=st.builds(Policy, model=st.text(), device=st.sampled_from([None, "cuda", "cpu"])),
    cluster=st.builds(
        Cluster,
        address=st.none() | st.text().map(lambda host: f"{host}:1"),
        tags=st.lists(st.text()).map(tuple),
        worker=st.builds(Deep, threads=st.none() | st.integers(1)),
    ),
    critic=st.builds(Critic, lr=st.floats(0, 1e300, exclude_min=True)),
)


@pytest.mark.slow
@settings(deadline=None)  # of a shared machine
@given(jobs)
def test_a_configuration_survives_yaml(tmp_path_factory: pytest.TempPathFactory, job: Job) -> None:
    text = to_yaml(job)
    file = tmp_path_factory.mktemp("yaml") / "config.yaml"
    file.write_text(text, encoding="utf-8")
    assert read_config(Job, file=str(file), overrides={}) == job
    assert read_config(Job, file=None, overrides={}, base=yaml.safe_load(text)) == job
    assert differences(read_config(Job, file=str(file), overrides={}), job) == []


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


def test_a_list_of_sections_survives_a_file(tmp_path: Path) -> None:
    config = Several(more=(Wanted(source="a"), Wanted(source="b")))
    file = tmp_path / "saved.yaml"
    file.write_text(to_yaml(config))
    assert read_config(Several, file=str(file), overrides={}) == config
    again = read_config(Several, file=None, overrides={"more": "[]"}, base=yaml.safe_load(to_yaml(config)))
    assert again == config.model_copy(update={"more": ()})
    assert [line.partition(":")[0] for line in differences(config, again)] == ["more"]


def test_the_help_of_a_list_of_sections_says_how_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help", model=Several)
    shown = " ".join(capsys.readouterr().out.split())
    assert "--more YAML further ones (default empty)" in shown
