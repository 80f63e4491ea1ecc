"""Nothing that a run from elsewhere names is asked before somebody has said yes to it, and then within bounds."""

import re

import pytest

from flows.config import TrainConfig
from flows.start.resume import resume_with
from flows.start.trust import NotTrustedError, trusted
from infra.storage.files import PathError
from rl.config import VerifierConfig
from tasks.sets.named_set import LARGEST, open_verifier
from tests.flows.start.elsewhere import saved
from tests.flows.start.site import Site


@pytest.mark.parametrize("cache", ["simplecache::", "filecache::"])
def test_an_address_is_asked_for_nothing_until_somebody_has_said_yes_to_it(
    elsewhere: str, site: Site, cache: str
) -> None:
    name = f"{cache}{site.address}/x.py:reward"
    evals = f"[{{path: held_out}}, {{path: grammar, verifier: '{cache}{site.address}/y.py:reward'}}]"
    run = saved(elsewhere, verifier=name, evals=evals)
    for _ in range(2):
        with pytest.raises(NotTrustedError, match=re.escape(f"would use its verifier {name}, verifier {cache}http")):
            trusted(run)
    assert site.asked == []
    trusted(run, trust=True)
    assert {path for path, _ in site.asked} == {"/x.py", "/y.py"}
    trusted(run)
    site.content = b"import os\n" + site.content
    with pytest.raises(NotTrustedError, match=r"something else .* its verifier .*x\.py:reward \(sha256 "):
        trusted(run)
    site.asked.clear()
    other = saved(elsewhere, verifier=f"{cache}{site.address}/z.py:reward")
    with pytest.raises(NotTrustedError, match=r"z\.py:reward;"):
        trusted(other)
    assert site.asked == []


def test_a_name_in_another_setting_unlocks_no_address(elsewhere: str, site: Site) -> None:
    name = f"simplecache::{site.address}/x.py:reward"
    trusted(saved(elsewhere, problems=f"{name} (sha256 .csv"), trust=True)
    with pytest.raises(NotTrustedError, match=r"x\.py:reward;"):
        trusted(saved(elsewhere, verifier=name))
    assert site.asked == []


@pytest.mark.parametrize("cache", ["simplecache::", "filecache::", "blockcache::"])
@pytest.mark.parametrize("length", [True, False])
def test_a_source_without_an_end_is_read_no_further_than_its_limit(site: Site, cache: str, length: bool) -> None:
    site.endless, site.length = True, length
    with pytest.raises(PathError, match=rf"/x\.py: is larger than {LARGEST} bytes"):
        open_verifier(f"{cache}{site.address}/x.py:reward", VerifierConfig())
    assert site.sent < 64 * LARGEST  # what is in the buffers between the two


def test_a_flow_looks_for_the_size_of_no_model_that_such_a_run_names(
    elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(elsewhere, policy="mine/private-model")  # its learning rate is the model's
    monkeypatch.setattr("flows.start.resume.with_defaults", lambda config: pytest.fail(f"asked {config.policy.model}"))
    with pytest.raises(NotTrustedError, match=r"policy\.model mine/private-model"):
        resume_with(elsewhere, "unused", TrainConfig())
