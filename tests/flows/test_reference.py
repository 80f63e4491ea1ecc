"""Runs whose rollouts are scored under a reference policy while they are made."""

import json
import shutil
import threading
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from flows.run.training import Training
from infra.cluster.timeline import Span, read_sessions
from infra.storage import store
from infra.weights.chain import cheapest_chain, read_edges, stored_version
from rl.algorithms.reinforce import Reinforce
from rl.records import Batch
from tasks.reference import OtherTokensError
from tests.flows.accidents import kill_in_call
from tests.flows.test_train import task_runs
from tests.processes import until

pytestmark = pytest.mark.slow

Batches = dict[int, Batch]


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Batches:
    """What a run trains on, by step, when its algorithm needs reference log-probs."""
    seen: Batches = {}
    keep = Training.keep

    def keeps(training: Training, step: int, batch: Any) -> None:
        seen[step] = batch.batch
        keep(training, step, batch)

    monkeypatch.setattr(Training, "keep", keeps)
    monkeypatch.setattr(Reinforce, "needs", frozenset({"reference_logprobs"}))
    return seen


def check_scores(batch: Batch, folder: Path, temperature: float = 1.0) -> None:
    """They are those of a plain forward pass, in float64, of the model in this folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    rollouts, found = batch.rollouts, batch.reference_logprobs
    assert found is not None
    assert found.dtype == np.float32
    assert len(batch)
    for (p, g), length in np.ndenumerate(rollouts.lengths):
        ids = torch.tensor([[*rollouts.prompts[p].tolist(), *rollouts.tokens[p, g, :length].tolist()]])
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0, -length - 1 : -1] / temperature
        expected = logits.log_softmax(-1).gather(1, ids[0, -length:, None])[:, 0].numpy()
        assert np.abs(found[p, g, :length] - expected).max() < 2e-5
        assert not found[p, g, length:].any()


def spans_of(run: Path) -> list[Span]:
    return [span for session in read_sessions((run / "timeline.jsonl").read_text()) for span in session]


def test_the_start_is_the_reference_and_is_scored_by_while_generation_goes_on(lab: Any, batches: Batches) -> None:
    lab.settle()
    eight = {"batch__prompts": "8", "batch__lease": "1", "batch__oversample": "1"}
    result = lab.train(steps="5", staleness="0", sampling__temperature="0.8", **eight)
    run = Path(result.run)
    assert sorted(batches) == [0, 1, 2, 3, 4]
    for step in (0, 4):
        check_scores(batches[step], lab.policy, 0.8)
    first, last = batches[0], batches[4]
    assert first.reference_logprobs is not None
    assert np.abs(first.reference_logprobs - first.rollouts.logprobs).max() < 1e-4  # of the policy that sampled
    assert last.reference_logprobs is not None
    assert np.abs(last.reference_logprobs - last.rollouts.logprobs).max() > 1e-3
    # version 0 stays, though generators have no use for it
    assert stored_version(str(run / "weights"), 0).step == 0
    spans = spans_of(run)
    generated, scored = ([span for span in spans if span.call == call] for call in ("generate", "reference"))
    assert len(generated) == len(scored) == 5 * 8
    for at in range(0, 5 * 8, 8):  # the first lease of a step is scored before the last is generated
        assert scored[at].end < generated[at + 7].end
    with lab.prefect() as prefect:
        names = task_runs(prefect, result.flow_run_id)
    assert {f"score reference {step}" for step in range(5)} <= set(names)
    assert set(names.values()) == {"Completed"}


def test_scoring_and_the_number_of_workers_change_no_bit(
    lab: Any, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = lab.train(steps="2", staleness="0")
    one = dict(batches)
    three = {"cluster__scheduler": None, "cluster__generators": "2", "cluster__references": "1"}
    lab.train(steps="2", staleness="0", cluster__threads="1", placement__reference="REFERENCE", **three)
    both = dict(batches)
    for step in (0, 1):
        assert (a := one[step].reference_logprobs) is not None
        assert (b := both[step].reference_logprobs) is not None
        assert a.tobytes() == b.tobytes()
        assert one[step].rollouts.tokens.tobytes() == both[step].rollouts.tokens.tobytes()
    monkeypatch.setattr(Reinforce, "needs", frozenset())
    without = lab.train(steps="2", staleness="0")
    assert batches[1].reference_logprobs is None
    assert lab.weights_digest(Path(alone.run), 2) == lab.weights_digest(Path(without.run), 2)


def test_a_worker_that_is_killed_while_it_scores_costs_a_lease_alone(lab: Any, batches: Batches) -> None:
    few = 6
    lab.train(steps=str(few), staleness="0")
    undisturbed = dict(batches)
    name = lab.new_name()
    run = lab.run_folder(name)
    lab.settle()
    killer = threading.Thread(target=kill_in_call, args=(lab, "generator-0", "reference", run, 2))
    killer.start()
    result = lab.train(run=name, steps=str(few), staleness="0")
    killer.join()
    assert result.lost["reference"] == 1
    for step, batch in undisturbed.items():
        assert (a := batch.reference_logprobs) is not None
        assert (b := batches[step].reference_logprobs) is not None
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("base", ["stored", "public"])
def test_a_run_that_goes_on_has_the_same_reference(lab: Any, batches: Batches, base: str) -> None:
    run = Path(lab.train(steps="5", staleness="1", sync__base=base).run)
    lab.train(resume=str(run), steps="7", staleness="1", sync__base=base)
    assert sorted(batches) == list(range(7))
    check_scores(batches[6], lab.policy)


def test_the_reference_of_adapters_is_the_frozen_model(lab: Any, batches: Batches) -> None:
    lab.train(steps="3", staleness="0", policy__lora="4", optimizer__lr="1e-2")
    check_scores(batches[2], lab.policy)
    assert batches[2].reference_logprobs is not None
    assert np.abs(batches[2].reference_logprobs - batches[2].rollouts.logprobs).max() > 1e-3


def test_a_version_of_another_run_is_the_reference_whatever_becomes_of_that_run(lab: Any, batches: Batches) -> None:
    first = Path(lab.train(steps="2", staleness="0", optimizer__lr="1e-3").run)
    kl = {"algorithm__kl": "0.05", "algorithm__kl__reference": f"{first.name}:1", "staleness": "0"}
    run = Path(lab.train(steps="2", **kl).run)
    assert f"reference: {first}:1" in (run / "config.yaml").read_text()
    kept, trained = (load_file(at / "model.safetensors") for at in (run / "reference" / "v0", first / "state" / "1"))
    assert all(torch.equal(kept[name], value) for name, value in trained.items() if name in kept)
    for step in (0, 1):
        check_scores(batches[step], run / "reference" / "v0")
    apart = batches[0].reference_logprobs
    assert apart is not None
    assert np.abs(apart - batches[0].rollouts.logprobs).max() > 1e-3  # unlike the start
    shutil.rmtree(first)
    lab.train(resume=str(run), steps="3", **(kl | {"algorithm__kl__reference": f"{first}:1"}))
    check_scores(batches[2], run / "reference" / "v0")


def test_a_reference_with_other_tokens_is_refused_before_the_run_is_written(lab: Any, tmp_path: Path) -> None:
    name = lab.new_name()
    other = shutil.copytree(lab.policy, tmp_path / "other")
    tokens = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary[-2:] = reversed(vocabulary[-2:])
    (other / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(OtherTokensError, match=r"other': has other tokens than policy\.model "):
        lab.train(steps="1", run=name, algorithm__kl="0.1", algorithm__kl__reference=str(other))
    assert not (lab.run_folder(name) / "config.yaml").exists()


def test_a_reference_that_follows_is_there_after_pruning_and_a_kill(lab: Any) -> None:
    """Version 3 is the reference of step 4, from which the killed run goes on, and no other reader needs it by then."""
    steps = 10
    options = {
        "algorithm": "ppo",
        "algorithm__kl": "0.1",
        "algorithm__kl__reference_every": "3",
        "staleness": "0",
        "optimizer__lr": "1e-3",
        "checkpoint__every": "4",
        "checkpoint__keep_last": "1",
    }
    whole = Path(lab.train(steps=str(steps), **options).run)
    edges = read_edges(str(whole / "weights"))
    # pruned: there is nothing but what leads to the references of kept checkpoints, to the newest and the one before
    needed = {edge.makes for edge in edges if edge.makes.step in (0, 3, 6, 9, steps)}
    chains = [cheapest_chain(edges, version) for version in needed]
    through = {edge.makes.step for chain in chains for edge in chain or ()}
    assert {edge.makes.step for edge in edges} == through < set(range(steps + 1))
    assert stored_version(str(whole / "weights"), 9).step == 9
    name = lab.new_name()
    run = lab.run_folder(name)
    with lab.command("train", options=lab.options(run=name, steps="500", **options)) as command:
        until(lambda: 7 in lab.metrics(run, "groups/used") or command.process.poll() is not None)
        command.signal_group(SIGKILL)
        assert command.finish()[0] == -SIGKILL
    newest = store.versions(str(run / "state"))[-1]
    reached = max(lab.metrics(run, "groups/used"))
    total = max(steps, reached)
    assert newest == reached // 4 * 4
    lab.train(resume=str(run), steps=str(total), **options)
    if total > steps:
        lab.train(resume=str(whole), steps=str(total), **options)
    assert lab.metrics(run, "loss/kl_reference") == lab.metrics(whole, "loss/kl_reference")
    for of in (".", "critic"):
        assert lab.weights_digest(run / of, total) == lab.weights_digest(whole / of, total)
