"""What a run keeps for people beside its metrics: completions, what its workers did, its report, Prefect's page."""

import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from prefect.runtime import flow_run

from flows.report.html import DASHBOARD, GRAPH, REPORT, draw_graph, draw_picture, picture_name, write_report
from flows.report.summary import prefect_page
from flows.run.artifacts import PrefectArtifacts
from flows.run.hold import Held, Lost
from flows.run.workplace import Workplace
from flows.start.tracked import save_mlflow_run
from infra.background import Background
from infra.cluster import timeline
from infra.cluster.exclusions import announce
from infra.cluster.placement import offers
from infra.disk import sweep_files
from infra.runs.record import (
    ABOUT,
    EVERY_STEP,
    METRICS,
    TAIL,
    TIMELINE,
    cut_evaluations,
    read_record,
    send_record,
    send_tail,
    versions,
)
from infra.runs.rollouts import remove_rollouts_after, write_rollouts
from infra.runs.tracking import Tracker, TrackingConfig
from infra.security.secrets import masked
from infra.services.links import keyed
from infra.storage import place
from infra.storage.retry_policy import RetryPolicy
from tasks.batch.rollout_batch import RolloutBatch

SEND_SECONDS = 60.0  # between two copies of the record of a run that lies elsewhere


class Kept(Held, Protocol):
    """A run, as its books see it."""

    @property
    def steps(self) -> int: ...

    @property
    def tracking(self) -> TrackingConfig: ...


class Bookkeeping:
    """A context manager within the tracker's. Its faults are said and end no run; a step costs a millisecond and a
    small file in the run's storage. Exiting makes the report, however the run ended."""

    def __init__(
        self,
        run: Kept,
        workplace: Workplace,
        folder: Path,
        tracker: Tracker,
        check: Callable[[], None],
        held_out: Mapping[str, int],
    ) -> None:
        """`check` raises once the run is another's: nothing is written then. `held_out` is how many problems of each
        set, or examples, the run is evaluated on."""
        self._check = check
        self._run, self._workplace, self._folder, self._tracker = run, workplace, folder, tracker
        self._background = Background(
            workplace.display.say,
            "the last completions, or the last copy of the record, may be missing from the run's storage; its "
            "checkpoints are whole, and so are its figures on this machine",
        )
        self._artifacts = PrefectArtifacts(run.name, workplace.display.say, workplace.prefect.serves)
        self._about: dict[str, Any] = {"held_out": dict(held_out)}
        self._sent = time.monotonic()
        self._mlflow_run = tracker.run_id  # as the run's storage has it
        self._lags = False  # whether the last step's copy failed
        self._excluded: Mapping[str, tuple[str, str]] = {}  # that were shown
        self._limit = ""  # as it was said last
        self._copied: Mapping[str, int] | None = None  # bytes of the record's files that are in the storage

    def __enter__(self) -> Self:
        for folder in (self._folder, self._folder / "rollouts"):
            sweep_files(folder)  # of an earlier session that was killed
        dispatch = self._workplace.dispatch
        with ExitStack() as stack:
            stack.enter_context(self._background)
            stack.enter_context(self._artifacts)
            links = self._link_mlflow()
            if dashboard := dispatch.client.dashboard_link:
                links[DASHBOARD] = [dashboard, "while the cluster is up"]
                self._link(DASHBOARD, *links[DASHBOARD])
            if flow_run.id is not None:
                url, command = prefect_page(str(flow_run.id))
                links["Prefect"] = [url, _served_by(command)]
            timeline.begin_session(self._folder / TIMELINE)
            present = offers(dispatch.client)
            before = read_record(self._run.uri, self._folder).about if self._run.resumed else {}
            began, sessions = before.get("began"), before.get("sessions", 1)
            self._note(
                run=self._run.uri,
                status="running",
                began=began if isinstance(began, int | float) else time.time(),  # of the run, not of its last session
                sessions=1 + (sessions if before and isinstance(sessions, int) else 0),
                changes=before.get("changes", []),
                excluded=before.get("excluded", {}),
                links=links,
                versions=versions(),
                workers={offer.name: sorted(offer.resources) for offer in present},
                memory_gb={offer.name: offer.memory_gb for offer in present if offer.memory_gb},
                machines={offer.name: [offer.machine, offer.cores] for offer in present if offer.cores},
            )
            announce(dispatch.client, self._run.name, {})
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = "finished" if kind is None else "failed" if issubclass(kind, Exception) else "stopped"
        why = "" if status != "failed" else str(error).strip().partition("\n")[0] or str(kind)
        with self._stack:
            try:
                self._write_spans()
                self._show_excluded()
                announce(self._workplace.dispatch.client, self._run.name, {})
                self._note(status=status, ended=time.time(), why=why, lost=dict(self._workplace.dispatch.lost))
                self._background.wait()  # the report shows the completions of the last step
                self._report()
            except Lost:
                return
            except Exception as error:  # noqa: BLE001 - the run has done its work, and its report can be made again
                words = f"{type(error).__name__}: {error}"
                self._workplace.display.say(
                    f"warning: no report could be made ({words}); try: rlvf report {shlex.quote(self._run.name)}"
                )
            self._submit("copying the record", lambda: send_record(self._run.uri, self._folder))

    def logged(self) -> None:
        """Copy what was added to the record since its last copy, where the run lies in a store: before the next update,
        whose checkpoint would be the newest, so that a resume elsewhere lacks nothing. One small file; a storage that
        is away costs a line."""
        try:
            with self._workplace.dispatch.waiting_for(f"the storage of {masked(self._run.uri)}"):
                send_tail(self._run.uri, self._folder, self._copied or {})
                if self._tracker.run_id != self._mlflow_run:  # made when MLflow was back
                    self._save_mlflow_run()
            self._lags = False
        except Exception as error:  # noqa: BLE001 - the step is on this machine's disk
            if not self._lags:
                self._workplace.display.say(f"warning: copying the record: {str(error).partition(chr(10))[0]}")
            self._lags = True

    def _send(self) -> None:
        """Copy the whole record to the run's storage."""
        self._check()
        self._copied = send_record(self._run.uri, self._folder)
        self._sent = time.monotonic()

    def go_back(self, step: int) -> None:
        """Remove what is kept and logged of steps after ``step``, the newest checkpoint's: they are made again. Where
        the metrics do not reach it, say so."""
        logged = max(self._tracker.last_step(metric) or 0 for metric in EVERY_STEP)
        if logged < step - 1:  # what is logged of the step itself is in its checkpoint
            self._workplace.display.say(
                f"warning: the newest checkpoint is of step {step}, and {_steps_are(logged + 1, step - 1)} missing "
                f"from {METRICS}, so from the report too; if there is a whole copy of that file, stop this run, put "
                "the copy in its place, and resume"
            )
        self._check()
        cut_evaluations(self._run.uri, self._folder, step)
        if not self._tracker.go_back(step):
            return
        again = _steps_are(step + 1, logged)
        self._workplace.display.say(f"the newest checkpoint is of step {step}: {again} made again")
        self._save_mlflow_run()
        self._check()
        remove_rollouts_after(self._run.uri, step)
        self._copied = send_record(self._run.uri, self._folder)
        for name in self._copied:
            place.remove_file(place.join(self._run.uri, TAIL, name))
        self._note(links=self._about["links"] | self._link_mlflow())

    def note_changes(self, step: int, lines: Sequence[str]) -> None:
        """Note what the run is given otherwise from this step on."""
        self._note(changes=[*self._about["changes"], *(f"from step {step} on: {line}" for line in lines)])

    def note_parameters(self, trained: int, every: int, dtype: str) -> None:
        """Note how many of the policy's parameters are trained, and the type of the arithmetic."""
        self._note(parameters=(trained, every), dtype=dtype)

    def _save_mlflow_run(self) -> None:
        self._mlflow_run = self._tracker.run_id
        save_mlflow_run(self._run.uri, self._mlflow_run)

    def _link_mlflow(self) -> dict[str, list[str]]:
        page = self._tracker.page()
        self._link("MLflow", page.url, _served_by(page.command))
        return {"MLflow": [page.url, _served_by(page.command)]}

    def _link(self, name: str, url: str, note: str) -> None:
        """A link with its server's key, on Prefect's page alone: what is kept with the run gets no key."""
        self._artifacts.link(name, keyed(self._workplace.home, name.split()[-1].lower(), url), note)

    def _submit(self, name: str, write: Callable[[], object]) -> None:
        def checked() -> None:
            self._check()
            write()

        self._background.submit(name, checked)

    def keep(self, step: int, batch: RolloutBatch) -> None:
        """Keep the completions that make the version after ``step``, before the update that might fail on them."""
        every = self._run.tracking.rollouts_every
        if every and (step + 1) % every == 0:
            again, uri = RetryPolicy(self._run.patience), self._run.uri
            self._submit(
                "keeping rollouts", lambda: again(lambda: write_rollouts(uri, step + 1, batch.rows(), self._check))
            )

    def step(self, step: int) -> list[timeline.Span]:
        """Note that ``step`` is done; returns the calls that came back since the one before."""
        spans = self._write_spans()
        self._show_excluded()
        self._artifacts.progress(step, self._run.steps, last=step == self._run.steps)
        if self._copied is None or time.monotonic() - self._sent > SEND_SECONDS:
            self._background.offer("copying the record", self._send)
        return spans

    def show_limit(self, words: Callable[[], str]) -> None:
        """Say, beside the run, what limits it, where there are words for that."""

        def show() -> None:
            if (text := words()) and text != self._limit:
                self._limit = text
                self._workplace.display.say(f"limit: {text}")
                self._artifacts.text("limit", text)

        self._background.offer("what limits the run", show)

    def _show_excluded(self) -> None:
        """Where people look: which workers get no more leases since this was called last, and why."""
        dispatch = self._workplace.dispatch
        if (found := dispatch.exclusions.distrusted) == self._excluded:
            return
        announce(dispatch.client, self._run.name, {address: why for address, (_, why) in found.items()})
        self._note(excluded={**self._about["excluded"], **dict(found.values())})
        for address in found.keys() - self._excluded.keys():
            name, why = found[address]
            self._tracker.tag(f"rlvf.excluded.{name}", why)
        self._excluded = found

    def _write_spans(self) -> list[timeline.Span]:
        self._check()
        spans = self._workplace.dispatch.timeline.take()
        timeline.write_spans(self._folder / TIMELINE, spans)
        return spans

    def _note(self, **what: Any) -> None:
        self._about.update(masked(what))
        place.write_text(str(self._folder / ABOUT), json.dumps(self._about, indent=2) + "\n")

    def _report(self) -> None:
        record = read_record(self._run.uri, self._folder)
        if not record.steps:
            return  # there is nothing to show
        picture, path = self._folder / picture_name(record), self._folder / REPORT
        if draw_graph(self._run.uri, record, self._folder / GRAPH):
            self._tracker.log_picture(self._folder / GRAPH)
        if not self._run.tracking.report:
            draw_picture(self._run.uri, record, picture)
            self._tracker.log_picture(picture)
            return
        write_report(self._run.uri, record, path)
        self._tracker.log_picture(picture)
        self._tracker.log_file(path)
        if place.local_path(self._run.uri) is None:
            there, data = place.join(self._run.uri, REPORT), path.read_bytes()
            self._submit("copying the report", lambda: place.write_bytes(there, data))
        page = self._tracker.page()  # a browser follows no link from Prefect's page to a file
        self._artifacts.link("report", page.artifact(REPORT), _served_by(page.command) or str(path))


def _steps_are(first: int, last: int) -> str:
    return f"step {first} is" if first == last else f"steps {first} to {last} are"


def _served_by(command: str | None) -> str:
    return f"served by: {command}" if command else ""
