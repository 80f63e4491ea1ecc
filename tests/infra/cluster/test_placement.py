"""The tags that calls need, and the error that says what is missing."""

from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster
from pydantic import ValidationError

from infra.cluster.placement import PlacementConfig, PlacementError, check_placement, offers, unsatisfied, workers_with
from tests.lone_worker import lone_worker


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A worker in this process that offers what a machine without a verifier does."""
    with (
        lone_worker("part", {"CPU": 1, "TRAINER": 1, "GENERATOR": 1}) as scheduler,
        Client(scheduler, set_as_default=False) as client,
    ):
        yield client


def test_a_call_takes_one_of_each_of_its_tags() -> None:
    placement = PlacementConfig(train=("TRAINER", "CUDA"))
    assert placement.resources("train") == {"TRAINER": 1, "CUDA": 1}
    assert placement.resources("generate") == {"GENERATOR": 1}
    of_models = ("reference", "reward", "train", "value", "train_critic")
    assert placement.calls == ("generate", "verify", "greedy", *of_models, "evaluate")


def test_an_unknown_call_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown call 'score'; the calls are generate, verify"):
        PlacementConfig().resources("score")


@pytest.mark.parametrize(("tag", "near"), [("GENERATR", "GENERATOR"), ("gpu", "CPU"), ("trainer", "TRAINER")])
def test_an_unknown_tag_names_the_nearest(tag: str, near: str) -> None:
    with pytest.raises(ValidationError, match=f"unknown tag '{tag}'; did you mean {near}"):
        PlacementConfig(generate=(tag,))


def test_a_call_without_tags_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs at least one tag"):
        PlacementConfig(verify=())


def test_the_workers_are_found_by_all_their_tags(client: Client) -> None:
    (present,) = offers(client)
    assert workers_with(client, ("TRAINER", "CPU")) == [present.address]
    assert workers_with(client, ("TRAINER", "CUDA")) == []


def test_a_worker_is_named_where_a_tag_may_be(client: Client) -> None:
    name = offers(client)[0].name
    placement = PlacementConfig(generate=("CPU", f"worker:{name}", "worker:other"), verify=("worker:other",))
    assert placement.resources("generate") == {"CPU": 1}
    assert workers_with(client, placement.tags("generate")) == [offers(client)[0].address]
    assert workers_with(client, ("CUDA", f"worker:{name}")) == []
    with pytest.raises(PlacementError, match="verify names other, and no such worker is there") as no:
        check_placement(client, placement)
    assert str(no.value).endswith("Start it again, or name tags instead (GENERATOR TRAINER)")
    with pytest.raises(PlacementError, match=f"names {name}x, .*did you mean worker:{name}.? "):
        check_placement(client, PlacementConfig(verify=(f"worker:{name}x",)))
    with pytest.raises(PlacementError, match=r"needs CUDA and worker:.* but no worker offers CUDA"):
        check_placement(client, PlacementConfig(verify=("CUDA", f"worker:{name}")))


@pytest.mark.parametrize("name", ["", "tcp://10.0.0.7:40123", "my laptop"])
def test_a_name_that_no_worker_has_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="names no worker; write it like worker:laptop-generator"):
        PlacementConfig(generate=(f"worker:{name}",))


def test_what_is_missing_is_said_with_the_command_that_adds_it(client: Client) -> None:
    check_placement(client, PlacementConfig(verify=("CPU",)))
    with pytest.raises(PlacementError) as caught:
        check_placement(client, PlacementConfig())
    name = offers(client)[0].name
    assert str(caught.value) == (
        "placement.verify needs VERIFIER but no worker offers VERIFIER. "
        f"Workers: {name}: CPU GENERATOR TRAINER. Add one with: "
        f"rlvf worker {client.scheduler.address} --roles verifier"
    )


def test_where_there_is_no_worker_one_of_every_role_is_added(client: Client) -> None:
    error = unsatisfied(client, "generate", ("GENERATOR",), [])
    assert str(error).endswith(f"Workers: none. Add one with: rlvf worker {client.scheduler.address}")


def test_the_device_of_the_call_is_in_the_command(client: Client) -> None:
    with pytest.raises(PlacementError, match="but no worker offers CUDA") as caught:
        check_placement(client, PlacementConfig(train=("CUDA", "TRAINER"), verify=("CPU",)))
    assert str(caught.value).endswith(f"rlvf worker {client.scheduler.address} --roles trainer --device cuda")


def test_of_a_local_cluster_it_is_an_option_that_adds_it() -> None:
    with (
        LocalCluster(n_workers=0, protocol="tcp", host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        with pytest.raises(PlacementError) as caught:
            check_placement(client, PlacementConfig())
        assert str(caught.value).endswith("Workers: none. Ask for one: --cluster.generators 1")
        with pytest.raises(PlacementError) as caught:
            check_placement(client, PlacementConfig(generate=("CUDA",)))
        assert str(caught.value).endswith("Take a cluster that has one: --cluster.scheduler ADDRESS")
