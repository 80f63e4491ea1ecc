import threading
import time

from infra.background import WAITING, Background

LACKING = "the page may lack something; the run lacks nothing"


def test_jobs_are_done_in_order_and_all_at_the_end() -> None:
    done: list[int] = []
    with Background(lambda _: None, LACKING) as background:
        for number in range(3 * WAITING):
            background.submit("count", lambda number=number: done.append(number))
    assert done == list(range(3 * WAITING))


def test_what_a_job_raises_is_said_once_until_it_works_again() -> None:
    said: list[str] = []
    broken = [True]

    def job() -> None:
        if broken[0]:
            raise OSError("no space left\non device")

    with Background(said.append, LACKING) as background:
        for is_broken in (True, True, False, True):
            background.submit("set", lambda value=is_broken: broken.__setitem__(0, value))
            background.submit("keeping rollouts", job)
    assert said == ["warning: keeping rollouts: no space left"] * 2


def test_an_offer_is_left_out_while_others_wait() -> None:
    going, done = threading.Event(), list[str]()
    with Background(lambda _: None, LACKING) as background:
        background.submit("slow", going.wait)
        background.submit("next", lambda: done.append("next"))
        background.offer("offer", lambda: done.append("offer"))
        going.set()
    assert done == ["next"]


def test_nobody_waits_for_ever_for_a_queue_that_is_full() -> None:
    never = threading.Event()
    with Background(lambda _: None, LACKING, end_seconds=0.3) as background:
        for _ in range(WAITING + 1):
            background.submit("stuck", never.wait)
        began = time.monotonic()
        background.wait()
        assert time.monotonic() - began < 5


def test_a_job_that_never_ends_does_not_hold_up_the_end() -> None:
    said: list[str] = []
    never = threading.Event()
    began = time.monotonic()
    with Background(said.append, LACKING, end_seconds=0.1) as background:
        background.submit("stuck", never.wait)
        for _ in range(WAITING):
            background.offer("more", lambda: None)
    assert time.monotonic() - began < 5
    assert said == [f"{LACKING} (what was left to write took more than 0 s)"]
    never.set()
