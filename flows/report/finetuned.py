"""What the report of a run on examples has of its own: its figures, its drawings, and how its model is used."""

import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from flows.finetune_config import DpoConfig, RewardModelConfig, SftConfig
from flows.report.charts import Chart, effort, first_to_last, lines
from flows.report.machine_charts import machines
from flows.report.pictures import reward_curve
from infra.runs.checkpoints import MODEL
from infra.runs.record import Record
from infra.storage import place

# what the loss of each method is, by the method and by the first part of its metrics' names
LOSSES = {
    SftConfig.method: ("sft", "nats per token", "Of completions as they are shown, in nats per token."),
    DpoConfig.method: ("dpo", "loss", "-log sigmoid of the margin between the implicit rewards of a pair: 0.693 at 0."),
    RewardModelConfig.method: ("reward_model", "loss", "-log sigmoid of the margin between the scores of a pair."),
}


def method_of(record: Record) -> str | None:
    """The command that the run is of; None of a run that learns from rewards."""
    return next((method for method, (prefix, *_) in LOSSES.items() if record.curve(f"{prefix}/loss")), None)


def loss(method: str, title: str, record: Record) -> Chart:
    """The loss by step and on what is held out."""
    prefix, unit, words = LOSSES[method]
    trained, held_out = record.curve(f"{prefix}/loss"), sorted(record.curve(f"{prefix}/held_out_loss").items())
    return Chart(
        "loss",
        "Loss",
        f"{words} Of each step's examples before it learns from them, and of those kept out of training.",
        lambda path: reward_curve(
            path, list(trained), list(trained.values()), held_out=held_out, title=title, label=unit,
            held_out_label="held out", to_one=False,
        ),
    )  # fmt: skip


def learning(method: str, title: str, record: Record) -> Iterator[Chart]:
    """Charts of learning."""
    yield loss(method, title, record)
    prefix = LOSSES[method][0]

    def both(*metrics: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for metric in metrics:
            label = metric.removesuffix("_reward")
            found |= {label: f"{prefix}/{metric}", f"{label}, held out": f"{prefix}/held_out_{metric}"}
        return found

    yield from lines(
        "accuracy", "Accuracy", "Share of pairs whose chosen completion is above the rejected one.",
        record, both("accuracy"), share=True,
    )  # fmt: skip
    what = "implicit rewards" if method == DpoConfig.method else "scores"
    yield from lines(
        "margin", "Margin", f"Between the {what} of the chosen and the rejected completion, mean of pairs.",
        record, both("margin"),
    )  # fmt: skip
    yield from lines(
        "rewards", "Implicit rewards", "beta times how much likelier the completion has become since the start. Both "
        "may fall while the margin grows.",
        record, both("chosen_reward", "rejected_reward"),
    )  # fmt: skip
    yield from lines("gradient", "Gradient norm", "Before clipping.", record, {"norm": f"{prefix}/grad_norm"})


def work(record: Record) -> Iterator[Chart]:
    """Charts of what the machines did."""
    yield from lines(
        "pace", "Pace", "Of each step, with the checkpoint that it wrote.",
        record, {"step": "perf/step_seconds"}, unit="seconds",
    )  # fmt: skip
    yield from machines(record)


def figures(method: str, record: Record, config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(what, value, more about it)."""
    prefix = LOSSES[method][0]
    sizes = record.about.get("held_out") or {}
    count = f"{sum(sizes.values())} " if sizes else ""
    untrained = ", before training" if set(record.curve(f"{prefix}/held_out_loss")) == {0} else ""
    on = f"{count}held-out examples{untrained}"
    for what in ("accuracy", "margin"):
        if found := first_to_last(record.curve(f"{prefix}/held_out_{what}")):
            yield what, found, on
    losses = record.curve(f"{prefix}/held_out_loss")
    if found := first_to_last(losses):
        yield "loss", found, on
    if method == SftConfig.method and (found := first_to_last(perplexity(losses), "{:.4g}")):
        yield "perplexity", found, f"by token, {on}"
    yield "loss in training", first_to_last(record.curve(f"{prefix}/loss")), "first and last step"
    yield from effort(record, config)


def perplexity(losses: Mapping[int, float]) -> dict[int, float]:
    """exp of each mean loss in nats per token; infinite where that is more than a float holds."""
    return {step: math.inf if of > 709.7 else math.exp(of) for step, of in losses.items()}


def uses(method: str, run_uri: str) -> list[tuple[str, str]]:
    """(what for, command) of the model that the run has made; none as long as it has made none."""
    model = place.join(run_uri, MODEL)
    if not place.exists(model):
        return []
    run, here = shlex.quote(run_uri), place.local_path(model)
    if method == RewardModelConfig.method:
        kind = "AutoModelForSequenceClassification"
        found = [
            ("train a policy by its score", f"rlvf train --verifier {shlex.quote(f'reward-model:{run_uri}')}"),
            (
                "train by a program and its score",
                f"rlvf train --verifier.reward_model {run} --verifier.reward_model_weight 0.5",
            ),
            (
                "score the newest run's policy",
                f"rlvf eval --policy newest --verifier {shlex.quote(f'reward-model:{run_uri}')}",
            ),
        ]
    else:
        kind = "AutoModelForCausalLM"
        found = [
            ("evaluate it", f"rlvf eval --policy {run}"),
            ("train it by reinforcement learning", f"rlvf train --policy {run}"),
        ]
        if method == SftConfig.method:
            found.append(("train it on pairs", f"rlvf dpo --problems PAIRS --policy {run}"))
    found.append(("train it for more steps", f"rlvf {method} --resume {run} --steps N"))
    if here is not None:
        found.append(("load it in Python", f"transformers.{kind}.from_pretrained({str(here)!r})"))
    return found
