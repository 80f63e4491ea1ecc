"""What a machine says of its part in a cluster; how it joins and leaves is tested with the command."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.cluster import membership
from infra.cluster.membership import Membership
from infra.cluster.reach import parse_address
from infra.cluster.role import Role


def test_who_joined_again_is_named_and_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    roles = [Role("jetson-generator", ("GENERATOR", "CUDA"), 1, ()), Role("jetson-verifier", ("VERIFIER",), 1, ())]
    joining = Membership(parse_address("tcp://10.0.0.5:8786", tmp_path), tmp_path, "jetson", roles, said.append)

    async def start(missing: Sequence[Role], _: str) -> list[Any]:
        joining._nannies.update({role.name: object() for role in missing})  # type: ignore[misc]
        return [None] * len(missing)

    monkeypatch.setattr(membership, "reach", lambda *_: "10.0.0.7")
    monkeypatch.setattr(joining, "_start", start)
    asyncio.run(joining._join())
    del joining._nannies["jetson-verifier"]  # it found that the scheduler was away
    asyncio.run(joining._join())
    assert said == [
        "joined tcp://10.0.0.5:8786 as jetson: GENERATOR CUDA VERIFIER",
        "joined tcp://10.0.0.5:8786 again as jetson: VERIFIER",
    ]
