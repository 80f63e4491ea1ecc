"""`rlvf runs`."""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TypeVar

from flows.commands.command import Command, say
from flows.commands.unused_up import say_unused_up
from flows.finetune_config import DpoConfig, RewardModelConfig, SftConfig
from flows.options.reading import read_config
from flows.start.finetunes import is_finetune, saved_settings
from flows.start.runs import local_folder
from flows.start.saved import saved_config
from infra.errors import one_line
from infra.home import rlvf_home, rlvf_storage
from infra.runs.checkpoints import CONFIG, SETTINGS
from infra.runs.record import EVERY_STEP, last_lines, read_about
from infra.security.printable import printable
from infra.security.secrets import masked
from infra.storage import place
from infra.storage.claim import holder
from infra.storage.manifest import StoreError
from infra.storage.usable import named_storage_errors, storage_uri

T = TypeVar("T")

EXAMPLES = """
rlvf runs                                              the newest runs of this home, or of $RLVF_STORAGE
rlvf runs --all --json                                 all of them, for a program
"""
SHOWN = 20  # without --all
AT_ONCE = 16  # runs that a storage elsewhere is asked for
LOG = re.compile(r"-[0-9a-f]{16}$")  # the folder of what is kept here of a run elsewhere: see `local_folder`
HELD_OUT = {"reward/mean": "eval/reward"} | {name: f"{name.partition('/')[0]}/held_out_loss" for name in EVERY_STEP[1:]}
ON_EXAMPLES = {kind.method: kind for kind in (SftConfig, DpoConfig, RewardModelConfig)}
TITLES = ("run", "state", "steps", "reward", "held out", "started", "model")


@dataclass(frozen=True)
class Listed:
    """A run, as a list shows it; None where that is not known."""

    run: str  # its URI
    name: str
    method: str  # the command that trains it
    state: str  # running, finished, failed, stopped; lost: killed, or its machine gives no sign; unknown
    step: int  # of the last update that was logged
    steps: int | None  # that it was asked for
    reward: float | None  # mean of the last step
    loss: float | None  # the same, of a run on examples
    held_out: float | None  # the last evaluation: the mean reward of greedy completions, or the loss
    held_out_step: int | None
    started: str  # when it was begun or resumed last
    model: str | None  # that it started from
    damaged: str | None  # what cannot be read

    @property
    def row(self) -> tuple[str, ...]:
        """It, under the `TITLES`."""
        last = _figure(self.reward) if self.loss is None else f"loss {self.loss:.3f}"
        steps = f"{self.step}/{'?' if self.steps is None else self.steps}"
        started = f"{datetime.fromisoformat(self.started):%Y-%m-%d %H:%M}"
        of = "" if self.held_out_step in (None, self.step) else f" (v{self.held_out_step})"
        return (self.name, self.state, steps, last, f"{_figure(self.held_out)}{of}", started, self.model or "?")


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--storage", metavar="URI", help="list the runs of this storage, as rlvf up --storage has it")
    command.add_argument("--all", action="store_true", help=f"list all, not the newest {SHOWN} alone")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _run(given: argparse.Namespace) -> None:
    if given.storage is None:
        say_unused_up()
    runs = place.join(rlvf_storage() if given.storage is None else storage_uri(given.storage), "runs")
    with named_storage_errors(runs):
        folders = place.folders(runs)
        written = dict(zip(folders, _each(_written, folders), strict=True))
        found = {uri: when for uri, when in written.items() if when is not None}
        newest = sorted(found, key=found.__getitem__, reverse=True)
        listed = _each(lambda uri: _listed(uri, found[uri], runs), newest if given.all else newest[:SHOWN])
    for each in listed:
        if each.damaged is not None:
            say(f"{each.name}: {each.damaged}")
    if others := [uri for uri in folders if uri not in found and not LOG.search(uri)]:
        names = ", ".join(uri.rpartition("/")[2] for uri in others[:3])
        more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
        say(f"no runs, as they have no {CONFIG} to read: {names}{more}")
    if len(newest) > len(listed):
        say(f"{len(newest) - len(listed):,} older runs: rlvf runs --all")
    if given.json:
        print(json.dumps({"runs": [asdict(each) for each in listed]}))
    elif not listed:
        say(f"there is no run at {masked(runs)} yet")
    else:
        print("\n".join(_table([TITLES, *(each.row for each in listed)])))


def _written(uri: str) -> datetime | None:
    """When the run was begun or resumed last; None where there is none, or none that this user may read."""
    with suppress(OSError):
        return place.modified(place.join(uri, CONFIG)) or place.modified(place.join(uri, SETTINGS))
    return None


def _listed(uri: str, when: datetime, runs: str) -> Listed:
    name, folder = uri.rpartition("/")[2], local_folder(uri, rlvf_home())
    damaged: list[str] = []

    def read(what: Callable[[], T]) -> T | None:
        try:
            return what()
        except (OSError, ValueError, StoreError) as error:
            damaged.append(masked(one_line(error)))
            return None

    method, model, steps = read(lambda: _settings(uri, name, runs)) or ("train", None, None)
    about = read(lambda: read_about(uri, folder)) or {}
    lines = read(lambda: last_lines(uri, folder, (*HELD_OUT, *HELD_OUT.values()))) or {}
    held = read(lambda: holder(uri))
    said = str(about.get("status") or "unknown")
    logged = next((metric for metric in EVERY_STEP if metric in lines), EVERY_STEP[0])
    last, measured = lines.get(logged), lines.get(HELD_OUT[logged])
    value = None if last is None else last.metrics[logged]
    of_rewards = logged == EVERY_STEP[0]
    return Listed(
        run=masked(uri),
        name=name,
        method=method,
        state="running" if held is not None else "lost" if said == "running" else said,
        step=0 if last is None else last.step,
        steps=steps,
        reward=value if of_rewards else None,
        loss=None if of_rewards else value,
        held_out=None if measured is None else measured.metrics[HELD_OUT[logged]],
        held_out_step=None if measured is None else measured.step,
        started=when.astimezone().isoformat(timespec="seconds"),
        model=model,
        damaged="; ".join(damaged) or None,
    )


def _settings(uri: str, name: str, runs: str) -> tuple[str, str | None, int | None]:
    """The method of the run, its model, and its steps. Raises ValueError."""
    if not is_finetune(uri):
        config = saved_config(uri)
        return "train", config.policy.model, config.steps
    saved = saved_settings(uri, name, runs)
    method = str(saved.pop("method", None))
    tuned = read_config(ON_EXAMPLES[method], file=None, overrides={}, base=saved) if method in ON_EXAMPLES else None
    return (method, None, None) if tuned is None else (method, tuned.policy.model, tuned.steps)


def _each(read: Callable[[str], T], uris: Sequence[str]) -> list[T]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(read, uris))


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _table(rows: Iterable[Sequence[str]]) -> list[str]:
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]


COMMAND = Command("runs", "list the runs, the newest first", EXAMPLES, _options, _run)
