"""Links in the folder of a run from elsewhere."""

from pathlib import Path

import pytest

from flows.cli import main
from flows.config import EvalConfig, TrainConfig
from flows.options.reading import read_config
from flows.start.as_trained import asked_evaluation
from flows.start.runs import Run
from flows.start.trust import NotTrustedError, trusted


def saved(uri: str) -> Run:
    run = Run(uri, TrainConfig(), resumed=True)
    run.save_config()
    return run


@pytest.mark.parametrize("link", ["state", "model", "model/config.json", "weights/v3/a/gone"])
def test_a_link_that_leads_out_of_a_run_from_elsewhere_is_refused_by_name_whatever_is_said(
    tmp_path: Path, home_folder: Path, link: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(str(tmp_path / "shared" / "run"))
    inside = Path(run.uri, "inside")
    inside.symlink_to("rollouts/1.jsonl.gz")
    Path(run.uri, "circle").symlink_to("circle")
    trusted(run)
    asked = read_config(EvalConfig, file=None, overrides={"policy": run.uri}, defaults=False)
    asked_evaluation(asked)
    planted = Path(run.uri, link)
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.symlink_to(tmp_path / "mine" / "state")
    words = f"{planted} is a symbolic link that leads out of its run, to {tmp_path / 'mine' / 'state'}; "
    for trust in (False, True):
        with pytest.raises(NotTrustedError) as refused:
            trusted(run, trust)
        assert str(refused.value).startswith(words)
    with pytest.raises(NotTrustedError, match="leads out of its run"):
        asked_evaluation(asked, trust=True)
    with pytest.raises(SystemExit) as ended:
        main(["train", "--resume", run.uri, "--trust"])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    mine = saved(str(home_folder / "runs" / "mine"))
    Path(mine.uri, "state").symlink_to(tmp_path / "large-disk")
    trusted(mine)


@pytest.mark.usefixtures("home_folder")
@pytest.mark.parametrize(("words", "name"), [(("report",), "report.html"), (("train", "--run"), "sources.json")])
def test_no_report_is_made_and_no_run_begun_where_a_link_leads_out(
    tmp_path: Path, words: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(str(tmp_path / "shared" / "run"))
    if words != ("report",):
        Path(run.uri, "config.yaml").unlink()  # a folder that waits for a run
        Path(run.uri, "lock").mkdir()
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    planted = Path(run.uri, name)
    planted.symlink_to(mine)
    with pytest.raises(SystemExit) as ended:
        main([*words, run.uri])
    assert ended.value.code == 2
    assert f"{planted} is a symbolic link that leads out of its run, to {mine}; " in capsys.readouterr().err
    assert mine.read_text() == "mine"
