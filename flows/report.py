"""One HTML file that says how a run went, whole in itself, and its pictures as PNG beside it."""

import base64
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from infra.runs.checkpoints import CONFIG
from infra.runs.pictures import reward_curve
from infra.runs.record import Record
from infra.runs.rollouts import Row, kept_steps, read_rollouts
from infra.runs.run_pictures import (
    SHOWN_SECONDS,
    amount,
    bytes_picture,
    stage_picture,
    staleness_picture,
    timeline_picture,
    worker_picture,
    worker_shares,
)
from infra.security.secrets import masked
from infra.storage import place

REPORT, PICTURE = "report.html", "reward.png"
TEMPLATES = Path(__file__).parent / "templates"
SAMPLED_STEPS, SAMPLES = 3, 6  # steps of which completions are shown, completions of each
CUT = 1500  # characters of a text that are shown
STAGES = ("rollouts", "update", "publish", "log")


class NothingToReport(ValueError):  # noqa: N818
    """A run has no step yet; one line says so."""


@dataclass(frozen=True)
class Picture:
    """A section of the report: a picture and what it shows."""

    name: str
    title: str
    words: str
    draw: Callable[[Path], None]
    path: Path = Path()

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.path.read_bytes()).decode()


@dataclass(frozen=True)
class Text:
    """A text that may be of any length."""

    shown: str
    left_out: int  # characters


def write_report(run_uri: str, record: Record, out: Path) -> Path:
    """Write the report of a run to ``out`` and its pictures beside it; returns ``out``.

    Raises:
        NothingToReport: no step is logged yet.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    name = run_uri.rstrip("/").rpartition("/")[2]
    if not record.steps:
        raise NothingToReport(f"{run_uri} has no step to report yet; try again when one is logged")
    config = _config(run_uri)
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    stem = "" if out.name == REPORT else f"{out.stem}-"
    pictures = []
    for picture in _pictures(name, record, config):
        path = out.parent / f"{stem}{picture.name}.png"
        picture.draw(path)
        pictures.append(Picture(picture.name, picture.title, picture.words, picture.draw, path))
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    page = environment.get_template("report.html.j2").render(
        name=name,
        uri=masked(run_uri),
        about=masked(dict(record.about)),
        status=_status(record, config),
        figures=list(_figures(record, config)),
        pictures=pictures,
        samples=list(_samples(run_uri)),
        shares=worker_shares(record.sessions[-1]) if record.sessions else {},
        reasons=_reasons(record),
        config=masked(yaml.safe_dump(config, sort_keys=False, allow_unicode=True)),
        resume=f"rlvf train --resume {shlex.quote(masked(run_uri))}",
        made=_moment(datetime.now(UTC).timestamp()),
        moment=_moment,
    )
    place.write_text(str(out), page)
    return out


def draw_reward(run_uri: str, record: Record, path: Path) -> None:
    """Draw the picture of the reward alone."""
    next(_pictures(run_uri.rstrip("/").rpartition("/")[2], record, _config(run_uri))).draw(path)


def _config(run_uri: str) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(place.read(place.join(run_uri, CONFIG)) or b"")
    except (yaml.YAMLError, UnicodeDecodeError):
        return {}  # a report of what there is; resuming such a run is refused with words
    return masked(found) if isinstance(found, Mapping) else {}


def _status(record: Record, config: Mapping[str, Any]) -> str:
    status = str(record.about.get("status", "unknown"))
    return status if status != "unknown" else "finished" if record.steps[-1] == config.get("steps") else status


def _figures(record: Record, config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(what, value, more about it)."""
    greedy, sampled = record.curve("eval/pass_at_1"), list(record.curve("eval/sampled").values())
    rates = list(greedy.values())
    if rates:
        word = f"{rates[0]:.3f} → {rates[-1]:.3f}" if len(rates) > 1 else f"{rates[0]:.3f}"
        yield "pass rate", word, "held-out problems, greedy"
    if sampled:
        word = f"{sampled[0]:.3f} → {sampled[-1]:.3f}" if len(sampled) > 1 else f"{sampled[0]:.3f}"
        yield "sampled", word, "held-out problems, at the temperature of training"
    rewards = list(record.curve("reward/mean").values())
    yield "reward", f"{rewards[0]:.3f} → {rewards[-1]:.3f}", "first and last step"
    yield "steps", f"{record.steps[-1]} of {config.get('steps', '?')}", ""
    if seconds := list(record.curve("perf/step_seconds").values()):
        yield "time", _duration(sum(seconds)), f"in steps; {sorted(seconds)[len(seconds) // 2]:.2f} s each (median)"
    if paces := sorted(record.curve("perf/rollouts_per_second").values()):
        yield "rollouts/s", f"{paces[len(paces) // 2]:.0f}", "median step"
    if moved := _differences(record, "sync/bytes"):
        ratios, changed = _middle(_differences(record, "sync/ratio")), _middle(_differences(record, "sync/changed"))
        yield "published", amount(sum(moved.values())), f"{ratios:.3g} times smaller than whole weights (median)"
        yield "changed", f"{changed:.2%}", "of the weights by a step (median)"
    for name, note in (("encode", "to find what has changed"), ("upload", "to store it")):
        if spent := _differences(record, f"sync/{name}_seconds"):
            yield name, f"{_middle(spent):.2g} s", f"{note}, beside the next update (median)"
    for name, note in (("download", "to fetch it, and"), ("apply", "to make the new weights of it")):
        if spent := record.curve(f"sync/{name}_seconds"):
            yield name, f"{_middle(spent):.2g} s", f"{note}, all generators together (median step)"
    lost = record.about.get("lost") or {}
    by_call = ", ".join(f"{count} × {call}" for call, count in lost.items())
    yield "lost calls", str(sum(lost.values())), by_call or "no worker died"


def _differences(record: Record, metric: str) -> dict[int, float]:
    """The metric of every version but the first, which is published whole."""
    return {step: value for step, value in record.curve(metric).items() if step > 0}


def _middle(curve: Mapping[int, float]) -> float:
    return sorted(curve.values())[len(curve) // 2] if curve else 0.0


def _pictures(name: str, record: Record, config: Mapping[str, Any]) -> Iterator[Picture]:
    reward = record.curve("reward/pass_rate")
    held_out = sorted(record.curve("eval/pass_at_1").items())
    parts = (_named(config, "policy", "model"), _named(config, "problems", "path"), _named(config, "loss", "name"))
    model, problems, loss = (PurePosixPath(part).name for part in parts)
    title = f"{model} on {problems}, {loss}" if model else name
    yield Picture(
        "reward",
        "Reward",
        "Share of completions that are right: each step's over everything drawn for it, and on problems kept out of "
        "training (greedy) before and after.",
        lambda path: reward_curve(path, list(reward), list(reward.values()), held_out=held_out, title=title),
    )
    stages = {stage: record.curve(f"perf/{stage}_seconds") for stage in STAGES}
    stages = {stage: curve for stage, curve in stages.items() if curve}
    if stages:
        yield Picture(
            "stages",
            "Where the time goes",
            "Wall time of each step as the flow saw it. rollouts is waiting for the batch: little of it means that "
            "generation keeps ahead of training. A step that is off the scale is cut.",
            lambda path: stage_picture(path, stages, title="seconds by stage"),
        )
    moved = {"published": _differences(record, "sync/bytes"), "read": record.curve("sync/fetched_bytes")}
    moved = {what: curve for what, curve in moved.items() if curve}
    if moved:
        yield Picture(
            "bytes",
            "Bytes",
            "Weights that the trainer wrote after the first version, and that all generators together read, by step.",
            lambda path: bytes_picture(path, moved, title="bytes by step"),
        )
    mean, most = record.curve("staleness/mean"), record.curve("staleness/max")
    if mean and most:
        yield Picture(
            "staleness",
            "Staleness",
            "Versions between sampling a token and training on it.",
            lambda path: staleness_picture(path, mean, most, title="versions between sampling and training"),
        )
    if record.sessions:
        spans = record.sessions[-1]
        whole = max(span.end for span in spans) - min(span.start for span in spans)
        yield Picture(
            "workers",
            "What the workers did",
            f"Of {_duration(whole)}, the last session. Waiting for work is time in which a worker had nothing to do.",
            lambda path: worker_picture(path, worker_shares(spans), title="share of each worker's time"),
        )
        yield Picture(
            "timeline",
            "Timeline",
            f"The last {min(whole, SHOWN_SECONDS):.0f} seconds. White is waiting for work.",
            lambda path: timeline_picture(path, spans, title="what each worker did when"),
        )


def _named(config: Mapping[str, Any], section: str, leaf: str) -> str:
    found = config.get(section, "")
    return str(found.get(leaf, "")) if isinstance(found, Mapping) else str(found)


def _samples(run_uri: str) -> Iterator[tuple[int, Sequence[Mapping[str, Any]], str]]:
    """(step, completions, what is wrong with them) of the newest step first, the middle one, the first."""
    steps = kept_steps(run_uri)
    chosen = {steps[round(at * (len(steps) - 1) / (SAMPLED_STEPS - 1))] for at in range(SAMPLED_STEPS)} if steps else ()
    for step in sorted(chosen, reverse=True):
        try:
            rows = read_rollouts(run_uri, step)
        except ValueError as error:
            yield step, [], str(error)
            continue
        yield step, [_sample(row) for row in _varied(rows)], ""


def _varied(rows: Sequence[Row]) -> list[Row]:
    """A few completions, as different as they come: of reasons and problems that were not shown yet first."""
    left, chosen = list(range(len(rows))), list[int]()
    while left and len(chosen) < SAMPLES:
        reasons = Counter(rows[at]["reason"] for at in chosen)
        groups = Counter(rows[at]["group"] for at in chosen)
        best = min(left, key=lambda at: (reasons[rows[at]["reason"]], groups[rows[at]["group"]], at))
        left.remove(best)
        chosen.append(best)
    return [rows[at] for at in sorted(chosen)]


def _sample(row: Row) -> Mapping[str, Any]:
    texts = {name: _cut(str(row[name])) for name in ("prompt", "target", "completion")}
    return {**row, **texts, "reason": _cut(str(row["reason"])).shown}


def _cut(text: str) -> Text:
    return Text(text[:CUT], max(0, len(text) - CUT))


def _reasons(record: Record) -> list[tuple[str, float, float]]:
    """(reason, its share in the first step, in the last)."""
    names = sorted({name for line in record.metrics for name in line.metrics if name.startswith("reasons/")})
    first, last = record.steps[0], record.steps[-1]
    curves = {name.partition("/")[2]: record.curve(name) for name in names}
    shares = [(name, curve.get(first, 0.0), curve.get(last, 0.0)) for name, curve in curves.items()]
    return sorted(shares, key=lambda share: -share[2])


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
