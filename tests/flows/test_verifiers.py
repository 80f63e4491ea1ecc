"""Runs and services with verifiers that are not arithmetic."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from flows.cli import main
from flows.commands.verifier import PORT
from flows.commands.verifier_service import MAX_BODY, MAX_ITEMS, MAX_TEXT
from flows.config import TrainConfig
from flows.report.html import write_report
from flows.report.summary import summary
from flows.start.runs import Run
from infra.runs.metric_log import read_metrics
from infra.runs.record import read_record
from infra.security.identity import certs_folder
from rl.records import Problem
from rl.verifiers.service import Service, ServiceError
from tests import strangers
from tests.other_users import visit
from tests.processes import started

REWARD = """
def reward(problem, completion):
    if problem.prompt.endswith(("1", "3", "7")):
        raise RuntimeError("odd")
    a, b = problem.prompt.removeprefix("add ").split(" and ")
    right = completion.replace(" ", "") == f"{a}+{b}"
    return {"format": 0.25 * ("+" in completion), "sum": 0.75 * right}
"""
ITEM = {"problem": {"prompt": "", "target": "#### 42"}, "completion": "#### 42"}


def certified(home: Path, machine: bool = True) -> ssl.SSLContext:
    """What trusts the authority of a home, and shows the certificate of its machine."""
    context = ssl.create_default_context(cafile=str(certs_folder(home) / "authority.pem"))
    if machine:
        context.load_cert_chain(certs_folder(home) / "machine.pem", certs_folder(home) / "machine.key")
    return context


@contextmanager
def serving(folder: Path, *words: str, port: tuple[str, ...] = ("--port", "0")) -> Iterator[str]:
    """The address of `rlvf verifier serve`; it ends by Ctrl-C, and what it said on stderr is in `said.log`."""
    program = "from flows.cli import main; main()"
    with started(
        *(sys.executable, "-c", program, "verifier", "serve", "--json", *port, *words),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, process.communicate()[1]
        yield json.loads(first)["url"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=90)
        assert (out, "Traceback" in err) == ("", False), err
        (folder / "said.log").write_text(err)


def test_a_service_judges_batches_and_refuses_what_is_too_much(tmp_path: Path, home_folder: Path) -> None:
    with serving(tmp_path, "--verifier", "gsm8k") as url, ExitStack() as stack:
        assert url.startswith("https://127.0.0.1:")
        client = stack.enter_context(httpx.Client(verify=certified(home_folder)))
        assert client.get(f"{url}/health").json() == {"verifier": "gsm8k"}
        assert set(strangers.refused(f"{url}/verify", {}, certified(home_folder)).values()) == {403}
        for context in (False, certified(home_folder, machine=False)):  # another user of this machine has none
            with (
                httpx.Client(verify=context) as stranger,
                pytest.raises(httpx.TransportError, match=r"(?i)certif|disconn"),
            ):
                stranger.get(f"{url}/health")
        at = int(url.rpartition(":")[2])
        assert visit([at]) == {at: []}
        broken = {"problem": {"prompt": "", "target": "none"}, "completion": ""}
        lacking = {"problem": {"prompt": ""}, "completion": "#### 42"}
        items = [ITEM, {**ITEM, "completion": "#### 1"}, broken, lacking]
        answer = client.post(f"{url}/verify", json={"items": items}).json()
        assert answer["rewards"] == [1.0, 0.0, None, None]
        assert answer["reasons"] == ["right", "wrong_value", "broken_problem", "broken_problem"]
        assert answer["parts"][0] == {"format": 1.0, "right": 1.0}
        assert answer["errors"][:2] == [None, None]
        assert "no number" in answer["errors"][2]
        for refused in (
            {},
            {"items": []},
            {"items": [ITEM] * (MAX_ITEMS + 1)},
            {"items": [{**ITEM, "completion": "x" * (MAX_TEXT + 1)}]},
            {"items": [{**ITEM, "completion": 1}]},
            {"items": [{**ITEM, "problem": {"prompt": "", "extra": {"x": "y" * 100_001}}}]},
            {"items": [ITEM], "more": 1},
        ):
            assert client.post(f"{url}/verify", json=refused).status_code == 422
        assert client.post(f"{url}/verify", content=b"{", timeout=20).status_code == 422

        def endless() -> Iterator[bytes]:
            for _ in range(MAX_BODY // 2**20 + 2):
                yield b" " * 2**20

        assert client.post(f"{url}/verify", content=b" " * (MAX_BODY + 1), timeout=20).status_code == 413
        with suppress(httpx.WriteError):  # refused before all was sent
            assert client.post(f"{url}/verify", content=endless(), timeout=20).status_code == 413
        assert client.get(f"{url}/health").status_code == 200


@pytest.mark.slow
def test_a_service_says_where_its_home_is_and_leaves_a_usual_port_that_is_taken(
    tmp_path: Path, home_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        with suppress(OSError):  # whoever has it, it is taken
            stack.enter_context(socket.create_server(("127.0.0.1", PORT)))
        with pytest.raises(SystemExit):  # chosen
            main(["verifier", "serve", "--port", str(PORT)])
        assert f"cannot listen at 127.0.0.1, port {PORT} (Address already in use" in capsys.readouterr().err
        url = stack.enter_context(serving(tmp_path, "--verifier", "gsm8k", port=()))
        assert httpx.get(f"{url}/health", verify=certified(home_folder)).json() == {"verifier": "gsm8k"}
        with pytest.raises(ServiceError, match=rf"^http:.*cannot be reached \(.+\), 4 times; try {url}, as "):
            Service(url.replace("https", "http"), 1).warm()
    at = url.rpartition(":")[2]
    assert at != str(PORT)
    said = (tmp_path / "said.log").read_text()
    assert f"home {home_folder} ($RLVF_HOME)\n" in said
    assert f"port {PORT} is in use: the verifier listens on {at}\n" in said


@pytest.mark.slow
def test_a_service_of_a_users_function_kills_what_does_not_end(tmp_path: Path, home_folder: Path) -> None:
    (tmp_path / "r.py").write_text("def score(p, c):\n    while c == 'loop': pass\n    return len(c), p.extra['x']\n")
    with serving(tmp_path, "--verifier", "r.py:score", "--verifier.seconds", "0.5") as url:
        client = Service(url, seconds=5, certificates=certs_folder(home_folder))
        problem = Problem("", "", "here", {"x": "told"})
        verdicts = client.judge([problem] * 3, ["ab", "loop", "abc"])
        client.close()
    assert [(v.reward, v.reason) for v in verdicts if v.reward == v.reward] == [(2, "told"), (3, "told")]
    assert verdicts[1].reason == "timeout"
    assert verdicts[1].error == f"{url}: r.py: score took longer than 0.5 s (here)"


@pytest.mark.slow
def test_a_service_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text("import nothing_here\ndef reward(p, c): return 1\n")
    for words, says in (
        (["--verifier", "r.py:reward"], "rlvf: r.py:1: ModuleNotFoundError: No module named 'nothing_here'\n"),
        (["--verifier", "http://127.0.0.1:1"], "is a service already"),
        (["--host", "192.0.2.1", "--insecure"], "rlvf: cannot listen at 192.0.2.1, port 0 ("),
    ):
        command = [
            sys.executable,
            "-c",
            "from flows.cli import main; main()",
            "verifier",
            "serve",
            "--port",
            "0",
            *words,
        ]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (2, "")
        loud = "INSECURE: everyone who reaches 192.0.2.1 can use what listens there\n" * ("--insecure" in words)
        said = done.stderr.removeprefix(loud)
        assert says in said
        assert said.count("\n") == 1


@pytest.mark.slow
def test_a_run_with_a_function_and_problems_of_ones_own(
    lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_reward.py").write_text(REWARD)
    rows = [{"q": f"add {a} and {b}", "hint": a} for a in range(10) for b in range(10)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {
        "problems": f"{tmp_path}/mine.jsonl",
        "problems.prompt": "q",
        "verifier": f"{tmp_path}/my_reward.py:reward",
        "mix": json.dumps([{"path": str(lab.problems), "verifier": "arithmetic"}]),
        "batch.prompts": "12",
        "staleness": "0",
    }
    result = lab.train(steps="2", **options)
    run = Path(result.run)
    errors = lab.metrics(run, "reward/error_rate")
    assert list(errors) == [1, 2]
    assert 0 < max(errors.values()) < 0.5
    for name in ("reward/format", "reward/sum", "reward/mine/pass_rate", "reward/sums/pass_rate", "groups/failed"):
        assert list(lab.metrics(run, name)) == [1, 2], name
    assert sum(lab.metrics(run, "groups/used").values()) > 0
    rates = [lab.metrics(run, f"reward/{name}pass_rate")[1] for name in ("", "mine/", "sums/")]
    assert min(rates[1:]) <= rates[0] <= max(rates[1:])
    said = capsys.readouterr().err
    assert "completions could not be judged so far: my_reward.py:4: RuntimeError: odd" in said
    assert "verifier " in said  # which sandbox stands around it
    assert ": sandbox " in said
    assert 0 < max(line.metrics.get("eval/error_rate", 0) for line in read_metrics(run / "metrics.jsonl")) < 0.5
    again = lab.train(resume=result.run, steps="3", **{**options, "run": result.run, "verifier.seconds": "3"})
    assert again.steps == 3
    # each set by its name and its number of problems, in the line of an evaluation, the summary and the report
    assert re.search(r"held-out, v2, 32 problems: reward \S+ greedy, \S+ sampled; pass rate ", said)
    shown = summary(Run(again.run, TrainConfig(), resumed=True), again, 1.0)
    assert " greedy on 32 held-out problems, mean\n" in shown
    page = write_report(again.run, read_record(again.run, run), tmp_path / "report.html").read_text()
    for name in ("mine", "sums"):
        before, after = (f"{lab.metrics(run, f'eval/{name}/reward')[step]:.3f}" for step in (0, 3))
        assert f"held-out, v0, {name} (16): reward {before} greedy" in said
        assert f"{'':12}{before} → {after} greedy on {name} (16)\n" in shown  # the first of them by an earlier session
        assert f"<dt>reward, {name}</dt>" in page
    assert "16 of the held-out problems" in page


@pytest.mark.slow
def test_the_command_evaluates_with_a_verifier_of_ones_own(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "my_reward.py").write_text("def reward(problem, completion):\n    return float('+' in completion)\n")
    found = lab.evaluate(
        policy=str(lab.policy), problems=str(lab.problems), verifier=f"{tmp_path}/my_reward.py:reward", samples="2"
    )
    assert (found.problems, found.error_rate) == (100, 0)
    assert found.greedy > 0.9


@pytest.mark.parametrize("old", ["grammar", "sums.csv", {"path": "sums.csv"}])
def test_configurations_from_before_there_were_sets_are_accepted(old: Any) -> None:
    config = TrainConfig.model_validate({"problems": old, "verifier": "gsm8k", "mix": ["a.csv", {"path": "b.csv"}]})
    assert config.problems.path == (old if isinstance(old, str) else old["path"])
    assert [each.path for each in config.sets[1:]] == ["a.csv", "b.csv"]
    assert config.verifier.name == "gsm8k"
    assert TrainConfig.model_validate(config.model_dump(mode="json")) == config


def test_the_schema_is_one_that_a_form_can_be_made_of() -> None:
    schema = TrainConfig.model_json_schema()
    assert {"$ref": "#/$defs/ProblemsConfig"} in schema["properties"]["mix"]["items"]["anyOf"]
    assert schema["$defs"]["ProblemsConfig"]["type"] == "object"
    assert set(schema["$defs"]["VerifierConfig"]["properties"]) == {
        *("name", "seconds", "memory_mb", "sandbox", "network", "env", "reads", "truncated", "timeout_reward"),
        *("reward_model", "reward_model_weight"),
    }
    assert np.isfinite(schema["$defs"]["ProblemsConfig"]["properties"]["weight"]["maximum"])
