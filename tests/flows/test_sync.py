"""What generators have is what the trainer has: bit for bit, whoever joins, whenever."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flows.config import TrainConfig
from infra.cluster.placement import offers
from infra.storage.manifest import Torn
from infra.weights.mirror import Mirror
from infra.weights.quantization import restored
from infra.weights.version import newest_version
from infra.weights.whole import PublicModel
from rl.config import PolicyConfig
from tasks.calls.published import public_model
from tests.processes import started, until


def master(run: Path, step: int) -> dict[str, torch.Tensor]:
    """The trainer's own weights at a step."""
    return load_file(run / "state" / str(step) / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "auto", "float16"])
def test_published_weights_are_the_trainers_rounded(lab: Any, dtype: str) -> None:
    run = Path(lab.train(steps="5", sync__dtype=dtype, optimizer__lr="1e-5").run)
    rounded = {"auto": torch.float32}.get(dtype) or getattr(torch, dtype)
    for step in (4, 5):
        version = newest_version(str(run))
        assert version is not None
        with Mirror(str(run / "weights"), patience=0).at(version) as found:
            wanted = {name: tensor.to(rounded) for name, tensor in master(run, version.step).items()}
            assert set(found) == set(wanted)
            width = {2: torch.int16, 4: torch.int32}[rounded.itemsize]
            for name, tensor in wanted.items():
                assert torch.equal(found[name].view(width), tensor.view(width)), (step, name)
    ratios = lab.metrics(run, "sync/ratio")
    assert list(ratios) == [0, 1, 2, 3, 4, 5]
    if dtype == "bfloat16":  # a learning rate that changes few of them
        assert all(0 < share < 0.2 for step, share in lab.metrics(run, "sync/changed").items() if step)
        assert all(ratio > 5 for step, ratio in ratios.items() if step)
    assert set(lab.metrics(run, "sync/inexact").values()) == {0}


@pytest.mark.slow
def test_in_eight_bits_they_are_near_and_said_to_be_inexact(lab: Any) -> None:
    run = Path(lab.train(steps="3", sync__dtype="int8").run)
    version = newest_version(str(run))
    assert version is not None
    with Mirror(str(run / "weights"), patience=0).at(version) as found:
        back = restored(found)
    for name, tensor in master(run, 3).items():
        assert (back[name] - tensor).abs().max() <= tensor.abs().max() / 250
    assert set(lab.metrics(run, "sync/inexact").values()) == {1}
    used = lab.metrics(run, "groups/used")
    mismatch = [kl for step, kl in lab.metrics(run, "policy/mismatch_kl").items() if used[step]]
    assert max(map(abs, mismatch)) > 1e-7  # the sampler is not the trainer


@pytest.mark.slow
def test_a_public_model_is_not_stored_again(lab: Any) -> None:
    run = Path(lab.train(steps="2", sync__base="public", sync__dtype="bfloat16").run)
    assert not (run / "weights" / "v0" / "model.safetensors").exists()
    lab.train(resume=str(run), steps="3", sync__base="public", sync__dtype="bfloat16")
    kept = lab.evaluate(policy=run.name, problems=str(lab.problems), samples="1")
    assert kept.step == 3
    version = newest_version(str(run))
    assert version is not None
    other = PublicModel("another", lambda _: pytest.fail("loaded"))
    with (
        pytest.raises(Torn, match="which is not the model that is asked for"),
        Mirror(str(run / "weights"), patience=0, public=other).at(version),
    ):
        pass
    changed = public_model(str(lab.policy), PolicyConfig(device="cpu"))
    stale = PublicModel(changed.name, lambda dtype: {**changed.load(dtype), "model.norm.weight": torch.zeros(128)})
    with (
        pytest.raises(Torn, match=r"is another here; take --sync\.base stored"),
        Mirror(str(run / "weights"), patience=0, public=stale).at(version),
    ):
        pass
    with Mirror(str(run / "weights"), patience=0, public=changed).at(version) as found:
        assert torch.equal(found["model.norm.weight"], master(run, 3)["model.norm.weight"].bfloat16())


def test_the_tiny_policy_is_no_public_model() -> None:
    with pytest.raises(ValueError, match="needs a model that every machine can load"):
        TrainConfig.model_validate({"sync": {"base": "public"}})


@contextmanager
def joined(lab: Any, name: str) -> Iterator[str]:
    """A generator that joins the shared cluster; gives its address."""
    command = ["--name", name, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--resources", "GENERATOR=1 CPU=1"]
    with started(sys.executable, "-m", "distributed.cli.dask_worker", lab.client.scheduler.address, *command):
        until(lambda: name in [offer.name for offer in offers(lab.client)])
        yield next(offer.address for offer in offers(lab.client) if offer.name == name)
    until(lambda: name not in [offer.name for offer in offers(lab.client)])


@pytest.mark.slow
def test_a_generator_that_joins_at_step_30_ends_with_the_same_bits(lab: Any) -> None:
    name = lab.new_name()
    run = lab.run_folder(name)
    options = {"steps": "112", "batch__prompts": "8", "batch__lease": "2", "sync__anchor_every": "8"}

    def digest(weights: str) -> str:  # a nested function is sent by value: a worker cannot import this file
        from infra.cluster.resident import resident_now
        from infra.weights.difference import weights_digest
        from infra.weights.version import newest_version

        mirror: Any = resident_now("mirror", weights)
        with mirror.at(newest_version(weights.rpartition("/")[0])) as found:
            return weights_digest(found)

    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(lab.train, run=name, **options)
        until(lambda: training.done() or 30 in lab.metrics(run, "reward/mean"))
        with joined(lab, "newcomer") as newcomer:
            generator, _ = lab.worker("generator-0")
            training.result()
            found = lab.client.run(digest, str(run / "weights"), workers=[newcomer, generator])
    version = newest_version(str(run))
    assert version is not None
    assert version.step == 112
    assert found == {newcomer: version.digest, generator: version.digest}
    fetched = lab.metrics(run, "sync/newcomer/fetched_bytes")
    assert min(fetched) >= 30
    assert sum(fetched.values()) > 0


@pytest.mark.slow
def test_a_run_goes_on_with_less_staleness_and_another_correction(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(lab.train(steps="5", staleness="3").run)
    lab.train(resume=str(run), steps="8", staleness="1", algorithm__correction="mask")
    lab.train(resume=str(run), steps="10", staleness="0", algorithm__correction="mask")
    oldest = lab.metrics(run, "staleness/max")
    assert list(oldest) == list(range(1, 11))
    assert oldest[5] > 1  # generators were ahead
    assert [oldest[step] for step in (6, 9, 10)] == [0, 0, 0]  # batches that were under way are made anew
    assert max(oldest[step] for step in (7, 8)) <= 1
    assert list(lab.metrics(run, "correction/kept")) == list(range(6, 11))
    said = capsys.readouterr().err.splitlines()
    assert "other than before: staleness: saved 3, now 1" in said
    assert "other than before: staleness: saved 1, now 0" in said
