"""The tracker of a run that goes on."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flows.run.bookkeeping import Kept
from flows.run.workplace import Workplace
from flows.start.runs import local_folder
from flows.start.tracked import mlflow_owner, mlflow_run, save_mlflow_run
from infra.errors import one_line
from infra.runs.record import METRICS
from infra.runs.tracking import Tracker

logger = logging.getLogger(__name__)


@contextmanager
def tracker_of(
    run: Kept, workplace: Workplace, experiment: str, params: Mapping[str, Any], check: Callable[[], None]
) -> Iterator[Tracker]:
    """Its metrics, and its MLflow run. ``check`` raises once the run is another's."""
    home = workplace.home
    with Tracker(
        run.tracking,
        home=home,
        experiment=experiment,
        run_name=run.name,
        run_id=mlflow_run(run.uri),
        owner=mlflow_owner(run.uri),
        params=params,
        local=local_folder(run.uri, home) / METRICS,
        check=check,
        is_over=lambda: workplace.dispatch.stopped,
    ) as tracker:
        save_mlflow_run(run.uri, tracker.run_id)  # for a start after one that is killed from here on
        yield tracker
    try:
        check()
        save_mlflow_run(run.uri, tracker.run_id, told=tracker.told)
    except Exception as error:  # noqa: BLE001  # the run has done its work; a resume tells MLflow again
        logger.warning("whether MLflow has all of this run was not noted: %s", one_line(error))
