"""What is refused before anything starts: runs and models that are not there."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.config import TrainConfig
from flows.options.reading import OptionError, read_config
from flows.start.preflight import check_configuration_here, check_engine_here, check_model
from flows.start.runs import Run, known_run
from infra.cluster.cluster_config import ClusterConfig
from infra.runs.checkpoints import NotARun
from rl.config import PolicyConfig
from rl.model.tiny import build_model, build_tokenizer
from rl.sampling.server import ServerError
from tests.conftest import free_port
from tests.flows.commands.refusals import refused
from tests.flows.start.model_hub import Hub, use_hub

pytestmark = pytest.mark.slow

SERVED = "http://127.0.0.1:8000"
RUN = "from flows.cli import main; main()"


def test_a_mistyped_run_is_one_line_with_the_nearest_names(hub: Hub, home_folder: Path, tmp_path: Path) -> None:
    for name in ("20260101-120000-tiny", "20260102-130000-tiny", "other"):
        Run(str(home_folder / "runs" / name), TrainConfig(), resumed=False).save_config()
    runs = str(home_folder / "runs")
    with pytest.raises(
        NotARun, match=r"there is nothing; did you mean 20260101-120000-tiny or 20260102-130000-tiny\?$"
    ):
        known_run("20260101-12000-tiny", runs)
    with pytest.raises(
        NotARun, match=r"there is nothing; the newest runs are other, 20260102-130000-tiny, 20260101-120000-tiny$"
    ):
        known_run("zzz", runs)
    ended = subprocess.run(
        [sys.executable, "-c", RUN, "eval", "--policy", "20260101-12000-tiny"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(
        f"rlvf: policy.model '20260101-12000-tiny': there is no run {runs}/20260101-12000-tiny, and http://127.0.0.1:"
    )
    assert ended.stderr.endswith("; did you mean 20260101-120000-tiny or 20260102-130000-tiny?\n")
    assert hub.asked == ["20260101-12000-tiny"]  # and not again and again


def test_a_hub_that_is_away_is_one_line_and_no_retries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_hub(monkeypatch, f"http://127.0.0.1:{free_port()}", tmp_path / "cache")
    ended = subprocess.run(
        [sys.executable, "-c", RUN, "train", "--policy", "no/such"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "Connection refused" in ended.stderr
    assert ended.stderr.endswith("offline? then name a folder that holds one\n")
    assert not (tmp_path / "home").exists()


def test_a_run_is_no_policy_to_train(hub: Hub, home_folder: Path) -> None:
    run = home_folder / "runs" / "mine"
    Run(str(run), TrainConfig(), resumed=False).save_config()
    with pytest.raises(ValueError, match=rf"is a run, whose policy is the folder {run}/model$"):
        check_model("mine", str(home_folder / "runs"))
    assert hub.asked == ["mine"]


@pytest.mark.usefixtures("hub")
def test_a_model_that_nobody_knows_is_told_what_may_be_meant(home_folder: Path) -> None:
    runs = home_folder / "runs"
    (runs / "20260101-120000-tiny").mkdir(parents=True)
    for given, near in (("tny", "tiny"), ("20260101-120000-tinny", "20260101-120000-tiny")):
        with pytest.raises(ValueError, match=rf"; did you mean {near}\?$"):
            check_model(given, str(runs))
    with pytest.raises(ValueError, match=r"no model of that id(, or a private one .*)?$"):
        check_model("Qwen/Qwen4", str(runs))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"policy": {"engine": "localhost:8000"}},
            r"policy\.engine 'localhost:8000': give rlvf, or the address of a server, such as",
        ),
        ({"policy": {"engine": "http://me:secret@127.0.0.1:8000"}}, r"give rlvf, or the address of a server"),
        ({"policy": {"engine": SERVED, "lora": {"rank": 4}}}, r"leave out one of policy\.engine and policy\.lora"),
        ({"policy": {"engine": SERVED}, "sampling": {"temperature": 0.001}}, r"sampling\.temperature: 0\.001 is taken"),
        (
            {"policy": {"dtype": "bfloat16", "lora": {"rank": 4, "base": "float16"}}},
            r"policy: lora\.base: float16 does not go with policy\.dtype bfloat16; give auto",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read_config(TrainConfig, file=None, overrides={}, base=given)


@pytest.mark.parametrize(
    "spelled",
    ["http://LOCALHOST:8000", "http://localhost:8000/v1/", "HTTP://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"],
)
def test_a_server_has_one_spelling(spelled: str) -> None:
    assert PolicyConfig(engine=spelled).engine == SERVED
    assert PolicyConfig(engine="http://[::1]:80/v1").engine == "http://[::1]"
    assert PolicyConfig(engine="https://a.b:443").engine == "https://a.b"


def test_a_server_that_does_not_answer_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    ended = subprocess.run(
        [sys.executable, "-c", RUN, "train", "--policy.engine", address], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith(f"rlvf: policy.engine: the server at {address} cannot be reached")
    assert not (tmp_path / ".rlvf" / "runs").exists()
    check_engine_here(PolicyConfig(engine=address), ClusterConfig(scheduler="tcp://10.0.0.1:8786"))  # not from here
    with pytest.raises(ServerError):
        check_engine_here(PolicyConfig(engine=address), ClusterConfig())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy.lora", "4", "--policy.lora.targets", "qkv"], "policy.lora.targets: no linear layer 'qkv' can have"),
        (["--problems.system", "be brief"], "problems.system: the model has no chat template to say it through"),
        (["--sampling.max_tokens", "1020"], "sampling.max_tokens: "),
        (["--policy.lora.base", "bf16"], "--policy.lora.base: 'bf16' is not allowed; give one of auto, float32, "),
    ],
)
def test_what_a_model_s_configuration_tells_is_refused_before_anything_starts(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flows.commands.train.in_workplace", lambda *_: pytest.fail("started"))
    assert refused(["train", "--policy", plain_model(tmp_path), *options], capsys).startswith(f"rlvf: {said}")


def test_of_the_tiny_policy_only_what_was_asked_of_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flows.commands.train.in_workplace", lambda *_: pytest.fail("started"))
    assert "no linear layer 'qkv'" in refused(["train", "--policy.lora", "4", "--policy.lora.targets", "qkv"], capsys)
    assert "of positions of 1024" in refused(["train", "--sampling.max_tokens", "2000"], capsys)
    monkeypatch.setattr("rl.model.skeleton.skeleton", lambda _: pytest.fail("made"))
    check_configuration_here(TrainConfig(), ())


def plain_model(folder: Path) -> str:
    """The tiny model without a chat template, saved."""
    tokenizer = build_tokenizer()
    build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, 0).save_pretrained(folder)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    return str(folder)
