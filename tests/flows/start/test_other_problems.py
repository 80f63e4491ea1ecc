"""A run goes on with the problems that it was begun with."""

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.start.lineage import PROBLEMS, save_problems, saved_problems
from flows.start.runs import Run
from infra.storage.typed import DamagedError
from rl.problems.tables import ProblemError
from tasks.sets.problem_set import ProblemSet, open_problems


def begun(uri: str, **overrides: str) -> Run:
    run = Run(uri, read_config(TrainConfig, file=None, overrides=overrides), resumed=False)
    run.save_config()
    return run


def rows(*numbers: int, plus: int = 1) -> str:
    return "python_expression,natural_language\n" + "".join(f"{n} + {plus},add to {n}\n" for n in numbers)


def opened(config: TrainConfig) -> ProblemSet:
    return open_problems(config.sets, config.verifier, config.held_out, config.seed)


@pytest.mark.parametrize(
    ("edited", "counts"),
    [
        (rows(*range(400)), "300 then, 400 now"),  # of the default held-out part, some have been trained on
        (rows(*range(299)), "300 then, 299 now"),
        (rows(*range(1, 301)), "300 then, 300 now"),
        (rows(*range(300), plus=2), "300 then, 300 now"),  # other answers
    ],
)
@pytest.mark.parametrize("remote", [False, True])
def test_a_run_does_not_go_on_with_other_problems(tmp_path: Path, edited: str, counts: str, remote: bool) -> None:
    file = tmp_path / "sums.csv"
    file.write_text(rows(*range(300)))
    uri = f"memory://{uuid.uuid4().hex}/run" if remote else str(tmp_path / "run")
    run = begun(uri, problems=str(file), mix="[grammar]")
    first = opened(run.config)
    save_problems(run.uri, first)
    kept = saved_problems(uri)
    assert kept == first.files
    assert kept is not None
    assert list(kept) == ["sums"]  # what is made in code needs nothing
    assert (kept["sums"].rows, len(kept["sums"].prompts())) == (300, 240)
    file.write_text(edited)
    with pytest.raises(ProblemError) as refused:
        run.refuse_other_problems(opened(run.config))
    assert str(refused.value) == (
        f"run cannot be resumed: the problems of {file} are not those that it was trained on ({counts}); restore the "
        "file, or start a new run"
    )
    file.write_text(rows(*reversed(range(300))))  # in another order they are the same
    run.refuse_other_problems(opened(run.config))
    # a run of before kept its prompts as they stand, and drew those too that another one's words hold out
    before = {name: each.model_copy(update={"trained": each.trained[8:]}) for name, each in kept.items()}
    save_problems(run.uri, replace(first, files=before))
    run.refuse_other_problems(opened(run.config))


def test_a_run_of_an_older_version_goes_on_as_it_did(tmp_path: Path) -> None:
    saved = begun(str(tmp_path / "first"))
    assert saved_problems(saved.uri) is None
    saved.refuse_other_problems(opened(saved.config))


@pytest.mark.parametrize("content", [b"", b"[]", b'{"sums": {"rows": 3}}', b"\x80", b'{"sums'])
def test_a_damaged_record_of_the_problems_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    saved = begun(str(tmp_path / "first"))
    Path(saved.uri, PROBLEMS).write_bytes(content)
    with pytest.raises(DamagedError, match=r"first/problems\.json is damaged \(.+\); restore it, or ") as refused:
        saved_problems(saved.uri)
    assert "\n" not in str(refused.value)
