"""A question that nothing depends on, while the scheduler does not answer for a moment."""

import threading
import time

import pytest

from infra.dispatch import dispatch as dispatches
from infra.dispatch.dispatch import Dispatch

pytestmark = pytest.mark.slow


def test_a_scheduler_that_is_slow_to_answer_does_not_end_what_asks(
    dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are cancelled when it is really gone."""
    monkeypatch.setattr(dispatches, "ANSWER_SECONDS", 0.3)
    (worker, *_) = dispatch.offers("generate")
    pause = threading.Timer(0.2, dispatch.client.run_on_scheduler, (time.sleep, 2.0))
    pause.start()
    dispatch.ask("generate", time.sleep, 1.5, worker=worker, seconds=60, name="audit")
    pause.join()
