"""What Prefect's page of a run shows."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

from flows.run.artifacts import PrefectArtifacts
from infra.services.passwords import USER, password

pytestmark = pytest.mark.slow


def artifacts(lab: Any, flow_run: str) -> dict[str, Any]:
    """What the page of a flow run shows, by key."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    with lab.prefect() as prefect:
        found = prefect.read_artifacts(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run])))
    return {artifact.key: artifact for artifact in found}


def test_the_page_in_prefect_links_to_what_there_is_and_moves(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.run.artifacts.PAUSE_SECONDS", 0)
    first = lab.train(run="Links_1", steps="3", tracking__report="true")
    shown = artifacts(lab, first.flow_run_id)
    assert set(shown) == {f"links-1-{name}" for name in ("mlflow", "dask-dashboard", "progress", "report")}
    assert shown["links-1-progress"].type == "progress"
    assert shown["links-1-progress"].data == 100
    assert shown["links-1-progress"].description == "step 3 of 3"
    assert shown["links-1-progress"].updated > shown["links-1-progress"].created
    in_mlflow = lab.mlflow(lab.run_folder("Links_1"))[1].info.run_id
    assert in_mlflow in shown["links-1-mlflow"].data
    assert shown["links-1-report"].data.endswith(
        f"/runs/{in_mlflow}/artifacts/report.html?workflowType=machine_learning)"
    )
    assert "served by: " in shown["links-1-report"].description
    assert lab.client.dashboard_link in shown["links-1-dask-dashboard"].data
    known = (USER, password(lab.dask_home, "dashboard"))
    assert b"bokeh" in httpx.get(lab.client.dashboard_link, auth=known).content.lower()
    # the same run, another time: both pages keep theirs
    again = lab.train(resume=first.run, run=first.run, steps="4")
    assert artifacts(lab, again.flow_run_id)["links-1-progress"].data == 100
    assert artifacts(lab, first.flow_run_id)["links-1-progress"].description == "step 3 of 3"


def test_prefect_away_costs_a_run_one_line(
    lab: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise OSError("the server is away")

    monkeypatch.setattr("flows.run.artifacts.guarded_client", away)
    assert lab.train(steps="3").steps == 3
    assert capsys.readouterr().err.count("warning: Prefect's page: the server is away") == 1


class Failing:
    """A client whose requests raise these, one after the other; and how often Prefect's would do each again."""

    def __init__(self, *errors: Exception) -> None:
        self.left, self.retries = list(errors), list[int]()

    def create_artifact(self, _: Any) -> Any:
        self.retries.append(PREFECT_CLIENT_MAX_RETRIES.value())
        if self.left:
            raise self.left.pop(0)
        return SimpleNamespace(id=UUID(int=1))


def refused(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("PATCH", "http://127.0.0.1/api/artifacts/1")
    return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status))


@pytest.mark.parametrize(
    ("errors", "tries", "said"),
    [
        ([httpx.ReadError("reset"), refused(503)], 3, 0),
        ([refused(500)], 1, 1),
        ([OSError("its server is away")], 1, 1),
        ([httpx.ConnectError("")] * 3, 3, 1),
    ],
)
def test_a_server_that_dies_under_a_request_is_asked_again_by_us_who_look_first(
    errors: list[Exception], tries: int, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.run.artifacts.PAUSE_SECONDS", 0)
    monkeypatch.setattr("flows.run.artifacts.flow_run", SimpleNamespace(id=str(UUID(int=2))))
    client, lines = Failing(*errors), list[str]()
    monkeypatch.setattr("flows.run.artifacts.guarded_client", lambda _: nullcontext(client))
    usual = PREFECT_CLIENT_MAX_RETRIES.value()
    with PrefectArtifacts("run", lines.append, lambda **_: True) as page:
        page.link("one", "http://127.0.0.1")
        page.link("another", "http://127.0.0.1")
    assert client.retries == [0] * (tries + 1)
    assert len(lines) == said
    assert PREFECT_CLIENT_MAX_RETRIES.value() == usual > 0
