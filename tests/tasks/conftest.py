"""Leases of a few tokens, which tests of audits can count by hand."""

import pytest


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of an audit is meant for as many tokens as these leases have."""
    monkeypatch.setattr("rl.audit.FEWEST", 1)
