"""Whole runs in which the policy acts on an environment over several turns."""

from pathlib import Path
from typing import Any

import pytest

from infra.runs.rollouts import read_rollouts

SUMS = '''
import re


class Sums:
    """Whatever is said is answered by how many digits it has; the first answer of all even digits ends it."""

    turns, seconds, memory = 3, 5.0, 128

    def reset(self, target, **_):
        self.said, self.target, self.over = 0, target, False

    def step(self, text):
        self.said += 1
        self.over = len(text) % 2 == 0
        return f"{len(text)} of {self.said}"

    def get_reward(self):
        return self.said / 4 + self.over
'''


@pytest.fixture(scope="module")
def environment(lab: Any) -> dict[str, str]:
    """Options of a run on it."""
    path = lab.home / "sums.py"
    path.write_text(SUMS)
    return {"environment": f"{path}:Sums", "sampling__max_tokens": "36", "audit__share": "0"}


def test_a_run_acts_on_an_environment(lab: Any, environment: dict[str, str]) -> None:
    run = Path(lab.train(**environment, steps="2", staleness="0", held_out="4").run)
    assert min(lab.metrics(run, "turns/mean").values()) > 1
    assert set(lab.metrics(run, "groups/failed").values()) == {0}
    assert set(lab.metrics(run, "leases/refused").values()) == {0}
    rows = read_rollouts(str(run), 1)
    assert any("trained" in row for row in rows)
    assert max(lab.metrics(run, "policy/mismatch_kl").values()) < 1e-9
    assert len(lab.metrics(run, "eval/reward")) == 2
    print(rows[0], lab.metrics(run, "turns/mean"), lab.metrics(run, "tools/seconds"), lab.metrics(run, "reward/mean"))
