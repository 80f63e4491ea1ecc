"""One HTML file that says how a run went, whole in itself, and the picture of its reward as PNG beside it."""

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Json

from flows.options.plain_yaml import load_yaml
from flows.planner.limits import limit_of_record
from flows.report import finetuned
from flows.report.charts import drawn, figures, learning, reward, title_of
from flows.report.graph_chart import graph_chart
from flows.report.machine_charts import machines, traffic
from flows.report.run_pictures import worker_shares
from flows.start.saved import MOST_BYTES
from infra.runs.checkpoints import CONFIG, MODEL, SETTINGS
from infra.runs.record import Record
from infra.runs.rollouts import Row, kept_steps, read_rollouts
from infra.security.secrets import masked
from infra.storage import place

DASHBOARD = "Dask dashboard"  # the name of a link that is dead when its run has ended
REPORT, PICTURE, LOSS, GRAPH = "report.html", "reward.png", "loss.png", "graph.png"
TEMPLATES = Path(__file__).parent / "templates"
SAMPLED_STEPS, SAMPLES = 3, 6  # steps of which completions are shown, completions of each
CUT = 1500  # characters of a text that are shown
MESSAGES = 40  # of a conversation
SPEAKERS = {"assistant": "policy", "user": "environment"}  # as they are called here


class NothingToReport(ValueError):  # noqa: N818
    """A run has no step yet; one line says so."""


class _Message(BaseModel):
    """One of a conversation's."""

    role: str
    content: str


class _Whole(BaseModel):
    """The fields of a kept completion that are shown."""

    prompt: str
    target: str
    source: str
    completion: str
    reason: str
    group: int
    version: int
    tokens: int
    reward: float | None
    messages: Json[list[_Message]] | None = None


@dataclass(frozen=True)
class Text:
    """A text, cut for the page."""

    shown: str
    left_out: int  # characters


def write_report(run_uri: str, record: Record, out: Path) -> Path:
    """Write the report of a run to ``out`` and the picture of its reward, or of its loss, beside it; returns ``out``.

    Raises:
        NothingToReport: no step is logged yet.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    name = run_uri.rstrip("/").rpartition("/")[2]
    if not record.steps:
        raise NothingToReport(f"{run_uri} has no step to report yet; try again when one is logged")
    method = finetuned.method_of(record)
    config = _config(run_uri, method)
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    stem = "" if out.name == REPORT else f"{out.stem}-"
    draw_picture(run_uri, record, out.parent / f"{stem}{picture_name(record)}")
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    status = _status(record, config)
    of = run_uri, name, config, record
    shown = _trained(*of) if method is None else _finetuned(method, *of)
    page = environment.get_template("report.html.j2").render(
        name=name,
        uri=masked(run_uri),
        about=masked(dict(record.about)),
        status=status,
        traffic=list(traffic(record)),
        shares=worker_shares(record.sessions[-1]) if record.sessions else {},
        reasons=_reasons(record),
        links=_links(record, status),
        settings=CONFIG if method is None else SETTINGS,
        config=masked(yaml.safe_dump(config, sort_keys=False, allow_unicode=True)),
        resume=f"rlvf {method or 'train'} --resume {shlex.quote(masked(run_uri))}",
        made=_moment(datetime.now(UTC).timestamp()),
        moment=_moment,
        **shown,
    )
    # a file of the run may hold half of a character
    place.write_bytes(str(out), page.encode("utf-8", "replace"))
    return out


def _trained(run_uri: str, name: str, config: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """What the page shows of a run that learns from rewards alone."""
    return {
        "figures": list(figures(record, config)),
        "learning": drawn(learning(title_of(config, name), record)),
        "uses": None,
        "samples": list(_samples(run_uri, record.steps[-1])),
        "machines": drawn(machines(record)),
        "limit": "" if (limit := limit_of_record(record, config)) is None else limit.words(),
        "graph": drawn(graph_chart(config, record, name)),
    }


def _finetuned(method: str, run_uri: str, name: str, config: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """What the page shows of a run on examples alone."""
    return {
        "figures": list(finetuned.figures(method, record, config)),
        "learning": drawn(finetuned.learning(method, title_of(config, name, method), record)),
        "uses": masked(finetuned.uses(method, run_uri)),
        "model": masked(place.join(run_uri, MODEL)),
        "samples": None,
        "machines": drawn(finetuned.work(record)),
        "limit": "",
        "graph": [],
    }


def picture_name(record: Record) -> str:
    """Of the picture beside the report."""
    return PICTURE if finetuned.method_of(record) is None else LOSS


def draw_picture(run_uri: str, record: Record, path: Path) -> None:
    """Draw the picture of the reward, or of the loss, alone."""
    name, method = run_uri.rstrip("/").rpartition("/")[2], finetuned.method_of(record)
    config = _config(run_uri, method)
    title = title_of(config, name, method or "")
    chart = reward(title, record) if method is None else finetuned.loss(method, title, record)
    chart.draw(path)


def draw_graph(run_uri: str, record: Record, path: Path) -> bool:
    """Draw the picture of a step's calls alone; returns whether it is a run of such, and the timeline says enough."""
    if finetuned.method_of(record) is not None:
        return False
    name = run_uri.rstrip("/").rpartition("/")[2]
    for chart in graph_chart(_config(run_uri, None), record, name):
        chart.draw(path)
        return True
    return False


def _links(record: Record, status: str) -> dict[str, Any]:
    """The links of the run; the dashboard's only while it runs, as it ends with the cluster."""
    links: dict[str, Any] = dict(masked(record.about).get("links", {}))
    if status != "running":
        links.pop(DASHBOARD, None)
    return links


def _config(run_uri: str, method: str | None) -> Mapping[str, Any]:
    try:
        found = load_yaml(place.read(place.join(run_uri, CONFIG if method is None else SETTINGS), MOST_BYTES) or b"")
    except (yaml.YAMLError, UnicodeDecodeError):
        return {}  # a report of what there is; resuming such a run is refused with words
    return masked(found) if isinstance(found, Mapping) else {}


def _status(record: Record, config: Mapping[str, Any]) -> str:
    status = str(record.about.get("status", "unknown"))
    return status if status != "unknown" else "finished" if record.steps[-1] == config.get("steps") else status


def _samples(run_uri: str, last: int) -> Iterator[tuple[int, Sequence[Mapping[str, Any]], str]]:
    """(step, completions, what is wrong with them) of the newest step first, the middle one, the first. A run that was
    stopped may keep those of a step after the `last`, which it did not train on."""
    steps = [step for step in kept_steps(run_uri) if step <= last]
    chosen = {steps[round(at * (len(steps) - 1) / (SAMPLED_STEPS - 1))] for at in range(SAMPLED_STEPS)} if steps else ()
    for step in sorted(chosen, reverse=True):
        try:
            rows = read_rollouts(run_uri, step)
        except ValueError as error:
            yield step, [], str(error)
            continue
        whole = [row for row in rows if _is_whole(row)]
        lacking = f"{len(rows) - len(whole)} of {len(rows)} completions are damaged and left out"
        yield step, [_sample(row) for row in _varied(whole)], lacking if len(whole) < len(rows) else ""


def _is_whole(row: Any) -> bool:
    """Whether a row is as one is written: the file may be damaged, or anybody's."""
    try:
        _Whole.model_validate(row, strict=True)  # it is shown as it stands
    except ValueError:
        return False
    return True


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
    turns = _turns(json.loads(row.get("messages") or "[]"))
    return {
        **row,
        **texts,
        "turns": turns,
        "reason": _cut(str(row["reason"])).shown,
        "error": _cut(str(row.get("error", ""))).shown,
    }


def _turns(messages: Sequence[Mapping[str, str]]) -> list[tuple[str, Text]]:
    """(who, what) of a conversation, which is cut as a whole; what is left out is counted behind the last one shown."""
    shown: list[tuple[str, Text]] = []
    left = CUT
    for each in messages[:MESSAGES]:
        if left > 0:
            text = _cut(each["content"], left)
            shown.append((SPEAKERS.get(each["role"], each["role"][:CUT]), text))
            left -= len(text.shown)
    lost = sum(len(each["content"]) for each in messages) - sum(len(text.shown) for _, text in shown)
    return [*shown[:-1], (shown[-1][0], Text(shown[-1][1].shown, lost))] if shown else []


def _cut(text: str, most: int = CUT) -> Text:
    return Text(text[:most], max(0, len(text) - most))


def _reasons(record: Record) -> list[tuple[str, float, float]]:
    """(reason, its share in the first step, in the last)."""
    names = sorted({name for line in record.metrics for name in line.metrics if name.startswith("reasons/")})
    first, last = record.steps[0], record.steps[-1]
    curves = {name.partition("/")[2]: record.curve(name) for name in names}
    shares = [(name, curve.get(first, 0.0), curve.get(last, 0.0)) for name, curve in curves.items()]
    return sorted(shares, key=lambda share: -share[2])


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
