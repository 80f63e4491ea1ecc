"""The table of what real models write: `cases.yaml`."""

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl.records import Problem
from rl.verifiers.opened import opened
from rl.verifiers.spec import VerifierSpec

TABLE: dict[str, list[dict[str, Any]]] = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text("utf-8"))
BLOCKS = [(name, block) for name, blocks in TABLE.items() for block in blocks]
KINDS = {"right": 1.0, "wrong": 0.0}


def test_the_table_has_more_than_three_hundred_cases_none_of_them_twice() -> None:
    cases = Counter(
        (name, block.get("prompt"), block["target"], completion)
        for name, block in BLOCKS
        for kind in KINDS
        for completion in block.get(kind, [])
    )
    assert [case for case, count in cases.items() if count > 1] == []
    assert len(cases) > 300
    assert all(set(block) <= {"prompt", "target", "numbers", "why", *KINDS} for _, block in BLOCKS)


@pytest.mark.parametrize(("name", "block"), BLOCKS, ids=[f"{name}: {block['why']}" for name, block in BLOCKS])
def test_every_case_is_right(name: str, block: dict[str, Any]) -> None:
    if name == "math" and find_spec("math_verify") is None:
        pytest.skip("needs math-verify: install the extra 'math'")
    problem = Problem(block.get("prompt", ""), block["target"], "here", {"numbers": block.get("numbers", [])})
    asked = [(completion, reward) for kind, reward in KINDS.items() for completion in block.get(kind, [])]
    verdicts = opened(VerifierSpec(name=name, seconds=30)).judge(
        [problem] * len(asked), [completion for completion, _ in asked]
    )
    wrongly = {
        completion: verdict.error or verdict.reason
        for (completion, reward), verdict in zip(asked, verdicts, strict=True)
        if verdict.reward != reward
    }
    assert wrongly == {}
