"""A run on examples that lies elsewhere names files and addresses: they are used when somebody here has said so."""

from pathlib import Path

import pytest

from flows.cli import main
from flows.config import TrainConfig
from flows.finetune_config import FinetuneConfig, SftConfig
from flows.options.reading import read_config
from flows.start.finetunes import Finetune, new_finetune, resumed_finetune
from flows.start.runs import new_run
from flows.start.trust import NotTrustedError, remember, trusted
from infra.runs.checkpoints import NotARun
from infra.storage import place
from rl.problems.examples import Example
from tasks.sets.example_set import ExampleSet
from tests.flows.on_examples import KINDS

SET = ExampleSet("some", [Example("a", "b", "x:1", completions=("b",))], [])


def saved(uri: str, kind: type[FinetuneConfig] = SftConfig, **options: str) -> None:
    """A run that is there, with these options; a double underscore stands for a dot."""
    dotted = {name.replace("__", "."): value for name, value in options.items()}
    Finetune(uri, read_config(kind, file=None, overrides=dotted), resumed=False).save(SET)


def resumed(uri: str, **options: str) -> Finetune[SftConfig]:
    return resumed_finetune(
        SftConfig, uri, "unused", lambda base: read_config(SftConfig, file=None, overrides=options, base=base)
    )


def test_what_such_a_run_names_is_refused_in_one_line_until_it_is_trusted(elsewhere: str) -> None:
    named = {"tracking__uri": "http://198.51.100.1:5000", "cluster__scheduler": "tcp://198.51.100.1:8786"}
    saved(elsewhere, problems="/home/ann/private.jsonl", policy="mine/private-model", **named)
    with pytest.raises(NotTrustedError) as refused:
        trusted(resumed(elsewhere))
    assert str(refused.value) == (
        f"{elsewhere} was never trained from here, and going on would use its problems /home/ann/private.jsonl, "
        "policy.model mine/private-model, tracking.uri http://198.51.100.1:5000, cluster.scheduler "
        "tcp://198.51.100.1:8786; if you know who wrote that, say --trust once"
    )
    trusted(resumed(elsewhere), trust=True)
    trusted(resumed(elsewhere))
    saved(elsewhere, problems="/home/ann/other.jsonl", policy="mine/private-model", **named)
    with pytest.raises(NotTrustedError, match=r"something else than it did here before.*problems /home/ann/other"):
        trusted(resumed(elsewhere))


def test_what_one_names_oneself_or_lies_with_the_run_needs_no_trust(elsewhere: str, home_folder: Path) -> None:
    saved(elsewhere, problems=f"{elsewhere}/rows.jsonl", policy="mine/model", tracking__uri="http://198.51.100.1:5000")
    with pytest.raises(NotTrustedError, match=r"its policy\.model mine/model;"):
        trusted(resumed(elsewhere, **{"tracking.uri": "http://10.0.0.1:5000"}))
    trusted(resumed(elsewhere, policy="mine/model", **{"tracking.uri": "http://10.0.0.1:5000"}))
    mine = str(home_folder / "runs" / "mine")
    saved(mine, problems="/home/me/rows.jsonl")
    trusted(resumed(mine))


def test_what_was_begun_here_goes_on_without_a_question(elsewhere: str) -> None:
    saved(elsewhere, problems="/home/me/rows.jsonl")
    remember(resumed(elsewhere))
    trusted(resumed(elsewhere))


@pytest.mark.parametrize("method", KINDS)
def test_a_command_refuses_a_foreign_run_and_what_it_links_to(
    method: str, tmp_path: Path, home_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, precious = tmp_path / "private.jsonl", tmp_path / "precious" / "state"
    private.write_text('{"prompt": "a", "completion": "b", "chosen": "b", "rejected": "c"}\n' * 2)
    place.write_text(str(precious / "3" / "manifest.json"), "{}")
    uri = str(tmp_path / "foreign")
    saved(uri, KINDS[method], problems=str(private), cluster__scheduler="tcp://198.51.100.1:8786")
    link = Path(uri, "state")
    for said in (f"its problems {private}, cluster.scheduler tcp://198.51.100.1:8786; if you know", f"{link} is a"):
        with pytest.raises(SystemExit) as ended:
            main([method, "--resume", uri, *(["--trust"] if link.exists() else [])])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
        if not link.exists():
            link.symlink_to(precious)
    assert (precious / "3").is_dir()
    assert not home_folder.exists()


@pytest.mark.parametrize("method", KINDS)
def test_a_new_run_follows_no_link_that_was_laid_for_it(
    method: str, tmp_path: Path, home_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, uri = tmp_path / "rows.jsonl", tmp_path / "shared" / "run"
    rows.write_text('{"prompt": "a", "completion": "b", "chosen": "b", "rejected": "c"}\n' * 2)
    uri.mkdir(parents=True)
    (uri / ".laid").symlink_to(home_folder / "runs")
    with pytest.raises(SystemExit):
        main([method, "--problems", str(rows), "--run", str(uri)])
    assert ".laid is a symbolic link that leads out of its run" in capsys.readouterr().err


def test_a_run_that_names_no_examples_is_damaged(elsewhere: str) -> None:
    saved(elsewhere)
    with pytest.raises(NotARun, match=r"finetune\.yaml is damaged: it names no examples"):
        resumed(elsewhere)


def test_a_new_run_on_examples_begins_where_any_other_may(tmp_path: Path) -> None:
    def begun(name: str) -> Finetune[SftConfig]:
        config = read_config(SftConfig, file=None, overrides={"problems": "rows.jsonl", "run": name})
        return new_finetune(config, str(tmp_path))

    with pytest.raises(ValueError, match="'newest' means the newest one"):
        begun("newest")
    place.write_text(str(tmp_path / "parts" / "state" / "3" / "manifest.json"), "{}")
    with pytest.raises(ValueError, match="holds checkpoints or weights and no"):
        begun("parts")
    place.write_text(str(tmp_path / "notes" / "a.txt"), "mine")
    with pytest.raises(ValueError, match=r"holds a\.txt, which is no run's"):
        begun("notes")
    for name in ("lock/00000001.json", "examples.json", "tracking.json", "rlvf-probe-0123abcd", "lost+found/.keep"):
        place.write_text(str(tmp_path / "killed" / name), "{}")
    assert begun("killed").uri == str(tmp_path / "killed")
    saved(str(tmp_path / "tuned"), problems="rows.jsonl")
    for begin in (begun, lambda name: new_run(TrainConfig(run=name), str(tmp_path))):
        with pytest.raises(ValueError, match="run 'tuned' exists; go on with it by --resume tuned, or name another"):
            begin("tuned")
