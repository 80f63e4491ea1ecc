"""Who gets no more leases for what audits have found, and how it comes back."""

from infra.cluster.exclusions import FORGIVING, Exclusions
from infra.cluster.placement import Offer, PlacementConfig

GOOD = Offer("tcp://1", "good", {"GENERATOR": 1})
BAD = Offer("tcp://2", "bad", {"GENERATOR": 1})
BAD_AGAIN = Offer("tcp://3", "bad", {"GENERATOR": 1})  # started again


def excluded(exclusions: Exclusions, worker: Offer) -> bool:
    found = {exclusions.excluded(call, worker) for call in ("generate", "verify", "evaluate")}
    assert found == {exclusions.is_distrusted(worker)}  # from everything
    return exclusions.is_distrusted(worker)


def test_a_worker_that_audits_find_wrong_twice_is_out_and_comes_back_by_a_restart_and_one_that_it_passes() -> None:
    said: list[str] = []
    exclusions = Exclusions(PlacementConfig(), said.append)
    exclusions.found_wrong(BAD, "far off", GOOD)
    assert (excluded(exclusions, BAD), exclusions.is_watched(BAD), exclusions.distrusted) == (False, True, {})
    exclusions.found_wrong(BAD, "far off again", GOOD)
    assert (excluded(exclusions, BAD), excluded(exclusions, GOOD)) == (True, False)
    assert exclusions.distrusted == {BAD.address: ("bad", "far off again")}
    exclusions.found_right(BAD)  # an audit that was under way
    assert excluded(exclusions, BAD)
    assert exclusions.reasons("generate", [GOOD, BAD]) == "because audits have found them wrong: bad"

    assert not excluded(exclusions, BAD_AGAIN)
    assert exclusions.is_watched(BAD_AGAIN)  # all that it makes is audited
    exclusions.found_right(BAD_AGAIN)
    assert not exclusions.is_watched(BAD_AGAIN)
    exclusions.found_wrong(BAD_AGAIN, "once more", GOOD)
    assert not excluded(exclusions, BAD_AGAIN)  # it has two again
    assert excluded(exclusions, BAD)
    assert said == [
        "bad was found wrong by an audit: far off",
        "bad was found wrong by an audit: far off again",
        "bad gets no more leases in this run: audits have found it wrong; look at its memory and its versions of "
        "packages, then start it again",
        "bad was found wrong by an audit: once more",
    ]


def test_one_that_was_out_and_fails_its_first_audit_after_a_restart_is_out_at_once() -> None:
    exclusions = Exclusions(PlacementConfig(), lambda _: None)
    for _ in range(3):
        exclusions.found_wrong(BAD, "far off", GOOD)
    exclusions.found_wrong(BAD_AGAIN, "still far off", GOOD)
    assert excluded(exclusions, BAD_AGAIN)
    assert exclusions.distrusted == {"tcp://2": ("bad", "far off"), "tcp://3": ("bad", "still far off")}


def test_who_is_watched_and_then_found_right_in_a_disagreement_is_watched_no_more() -> None:
    exclusions = Exclusions(PlacementConfig(), lambda _: None)
    exclusions.found_wrong(GOOD, "a bit that flipped", BAD)
    exclusions.found_wrong(BAD, "far off", GOOD)
    assert not exclusions.is_watched(GOOD)
    assert exclusions.is_watched(BAD)


def test_one_that_returns_nonsense_is_shown_with_the_reason_too() -> None:
    exclusions = Exclusions(PlacementConfig(), lambda _: None)
    for _ in range(3):
        assert exclusions.distrusted == {}
        exclusions.refuse("generate", BAD, "it is str, and not rollouts")
    assert exclusions.distrusted == {
        "tcp://2": ("bad", "3 of its results were refused, the last of generate: it is str, and not rollouts")
    }


def test_errors_of_a_moment_do_not_add_up_over_days() -> None:
    exclusions = Exclusions(PlacementConfig(), lambda _: None)
    for _ in range(5):
        exclusions.fail("generate", GOOD, OSError("away"))
        exclusions.fail("generate", GOOD, OSError("away"))
        for _ in range(2 * FORGIVING):
            assert not exclusions.excluded("generate", GOOD)
            exclusions.worked("generate", GOOD)
    for _ in range(3):
        exclusions.fail("generate", BAD, OSError("no space left"))
        for _ in range(FORGIVING - 1):
            exclusions.worked("generate", BAD)
    assert exclusions.excluded("generate", BAD)
    for _ in range(FORGIVING):
        exclusions.worked("generate", BAD)  # of before
    assert exclusions.excluded("generate", BAD)
