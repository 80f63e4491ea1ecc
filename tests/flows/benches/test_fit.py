"""`rlvf bench fit`, and what `rlvf doctor` says of it."""

import json
from pathlib import Path

import pytest

from flows.cli import main
from flows.commands.doctor import check_fit, check_policy
from rl.loading import capacity
from rl.model import memory
from rl.model.policy import choose_device, choose_dtype, dtype_name
from rl.model.tiny import build_model, build_tokenizer

pytestmark = pytest.mark.slow

DTYPE = dtype_name(choose_dtype("auto", choose_device("auto"), lambda: 0))  # of a small model


def test_a_row_for_each_method(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "fit", "--tokens", "100", "--json"])
    out, err = capsys.readouterr()
    rows = json.loads(out)["fit"]
    assert [row["method"].split()[0] for row in rows] == ["full", "policy.lora", "policy.lora"]
    assert rows[0]["trained"] == 905_984 > rows[1]["trained"] > 0
    assert {row["dtype"] for row in rows} == {DTYPE}
    head, names, *lines = err.splitlines()
    assert head.startswith("905,984 parameters, ")
    assert "at once (100)" in names
    for row, line in zip(rows, lines, strict=True):
        assert line.startswith(row["method"])
        assert f"{row['at_once']:,}" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tokens", "0"], "--tokens 0: give 1 or more"),
        (["--tokens", "-3"], "--tokens -3: give 1 or more"),
        (["--tokens", "100000"], "--tokens 100000: 100000 tokens reach beyond the model's range of positions of 1024"),
        (["--policy", "./no"], "./no"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "fit", *words])
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("free", "state", "remedy"), [(2**34, "ok", ""), (24_000_000, "warn", "policy.lora"), (1, "warn", "smaller")]
)
def test_doctor_says_whether_a_model_fits_and_what_would(
    free: int, state: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = build_tokenizer()
    build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, 0).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for module in (memory, capacity):
        monkeypatch.setattr(module, "free_bytes", lambda _: free)
    check = check_fit(str(tmp_path))
    assert check.state == state
    assert "GB full" in check.found
    assert remedy in check.remedy


def test_without_a_length_it_is_one_that_the_model_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = build_model(600, 1, 0, 0).config
    config.max_position_embeddings = 256
    config.save_pretrained(tmp_path)
    main(["bench", "fit", "--policy", str(tmp_path)])
    assert "at once (256)" in capsys.readouterr().out


def test_of_a_folder_the_configuration_is_enough_for_doctor_too(tmp_path: Path) -> None:
    build_model(600, 1, 0, 0).config.save_pretrained(tmp_path)
    fit, files = check_policy(str(tmp_path))
    assert (fit.name, fit.state) == ("fit", "ok")
    assert (files.name, files.state) == ("policy", "warn")
    assert "cannot be trained as it is: " in files.found


def test_doctor_says_of_a_model_that_is_not_there_that_it_is_not(tmp_path: Path) -> None:
    (check,) = check_policy(str(tmp_path / "none"))
    assert (check.state, check.found) == ("fail", f"policy.model '{tmp_path}/none': there is no such folder")
