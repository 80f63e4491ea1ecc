"""What a scheduler is asked by those who do not join it."""

from pathlib import Path

from distributed import Client

from infra.cluster.exclusions import announce
from infra.cluster.placement import offers
from infra.cluster.reach import parse_address
from infra.services.scheduler import ask
from tests.lone_worker import lone_worker


def test_who_gets_no_more_leases_is_known_with_the_run_and_the_reason_until_it_ends(tmp_path: Path) -> None:
    with lone_worker("laptop", {"CPU": 1}) as address, Client(address, set_as_default=False) as client:
        seen = parse_address(address, tmp_path)
        assert [worker.excluded for worker in ask(seen, tmp_path).workers] == [""]
        (worker,) = offers(client)
        announce(client, "first", {worker.address: "far off", "tcp://127.0.0.1:9": "gone since"})
        assert [worker.excluded for worker in ask(seen, tmp_path).workers] == ["in first: far off"]
        announce(client, "first", {})
        assert [worker.excluded for worker in ask(seen, tmp_path).workers] == [""]
