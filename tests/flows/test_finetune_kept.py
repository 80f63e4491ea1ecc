"""What a run on examples keeps on its way, and what a resume makes of it."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.run.finetuning import bytes_of, scores_in
from infra.runs.record import METRICS
from infra.storage import place
from tasks import fit
from tasks.calls.tuner import Tuner
from tests.flows.on_examples import tune, write_examples

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_examples(tmp_path_factory.mktemp("examples"))


def test_scores_that_are_not_those_that_were_written_are_none(tmp_path: Path) -> None:
    scores = np.random.default_rng(0).normal(size=(5, 2))
    scores[3] = np.nan
    content = bytes_of(scores)
    read = scores_in(content, 5)
    assert read is not None
    np.testing.assert_array_equal(read, scores)
    np.testing.assert_array_equal(np.load(_written(tmp_path, content)), scores)
    read[0] = 0.0  # which is computed anew in place
    huge = content.replace(b"(5, 2)", b"(9**9,)"[:6])
    for other in (content[:-1], content[:60], b"", content + b"\0", bytes_of(scores.T), bytes_of(scores[:4]), huge):
        assert scores_in(other, 5) is None


def _written(folder: Path, content: bytes) -> Path:
    (folder / "scores.npy").write_bytes(content)
    return folder / "scores.npy"


def test_scores_under_the_start_model_that_are_damaged_are_computed_again(
    lab: Any, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tune(lab, "dpo", files, steps="2")
    kept = (run / "reference.npy").read_bytes()
    before = json.loads((run / "result.json").read_text())["before"]
    assert before
    for damaged in (kept[:100], bytes_of(np.zeros((3, 2)))):
        (run / "reference.npy").write_bytes(damaged)
        steps = json.loads((run / "result.json").read_text())["steps"] + 1
        tune(lab, "dpo", files, resume=run.name, steps=str(steps))
        said = "".join(capsys.readouterr())
        assert "reference.npy is damaged: the scores under the start model are computed again" in " ".join(said.split())
        again = scores_in((run / "reference.npy").read_bytes(), 60)
        assert again is not None
        whole = scores_in(kept, 60)
        assert whole is not None
        np.testing.assert_allclose(again[48:], whole[48:], rtol=1e-6)
        assert json.loads((run / "result.json").read_text())["before"] == before  # step 0's, as it was logged


def test_what_was_computed_of_the_reference_outlives_a_kill(
    lab: Any, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.run import finetuning

    whole = tune(lab, "dpo", files, steps="3")
    name = lab.new_name()
    asked: list[int] = []
    scores, compute = fit.reference_scores, finetuning.reference_scores
    monkeypatch.setattr(fit, "AT_ONCE", 8)
    monkeypatch.setattr(finetuning, "KEEP_SECONDS", 0.0)

    def some(dispatch: Any, tuner: Tuner, examples: Any, shown: Any, keep: Any) -> None:
        asked.append(len(examples))

        def kept(part: slice, found: Any) -> None:
            keep(part, found)
            if len(asked) == 1 and part.start == 16:
                raise RuntimeError("killed")

        compute(dispatch, tuner, examples, shown, kept)

    assert scores is compute
    monkeypatch.setattr(finetuning, "reference_scores", some)
    with pytest.raises(RuntimeError, match="killed"):
        tune(lab, "dpo", files, steps="3", run=name)
    run = lab.run_folder(name)
    assert (run / "finetune.yaml").is_file()
    assert not (run / "state").exists()
    tune(lab, "dpo", files, resume=name, steps="3")
    assert asked == [36, 12]  # of 24 examples to learn from and 12 that are held out, less three parts of 8
    assert lab.weights_digest(run, 3) == lab.weights_digest(whole, 3)


def test_a_run_in_a_bucket_has_its_record_there_and_goes_on_from_another_machine(
    lab: Any, files: Path, s3: str
) -> None:
    uri = f"{s3}/preferred"
    began = time.time()
    tune(lab, "dpo", files, steps="2", run=uri)
    result = json.loads(place.read_text(place.join(uri, "result.json")))
    assert result["before"]
    assert b'"step":2' in (place.read(place.join(uri, METRICS)) or b"").replace(b" ", b"")
    folder = lab.record_folder(uri)
    folder.rename(folder.with_name(f"other-{began}"))
    tune(lab, "dpo", files, resume=uri, run=uri, steps="3")
    again = json.loads(place.read_text(place.join(uri, "result.json")))
    assert again["before"] == result["before"]
    assert sorted(lab.metrics(folder, "dpo/loss")) == [1, 2, 3]
