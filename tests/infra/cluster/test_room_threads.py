"""What threads see of models that give way."""

import random
import threading
import time
from contextlib import ExitStack

import pytest

from infra.cluster import resident as module
from infra.cluster.resident import resident_now, using
from infra.cluster.room import Room
from tests.infra.cluster.test_room import GB, Accelerated, use

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_room", Room())
    monkeypatch.setenv("RLVF_MODELS_GB_CPU", "1000")


def test_threads_never_see_a_model_move_and_all_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVF_MODELS_GB_CPU", "60")  # of parked ones some are dropped, too
    names = [f"model {number}" for number in range(6)]
    counting, stop = threading.Lock(), time.monotonic() + 3
    errors: list[BaseException] = []
    calls = dict.fromkeys(names, 0)

    def build() -> Accelerated:
        time.sleep(random.random() / 500)
        return Accelerated(random.choice([20, 30, 60]) * GB)

    def work(seed: int) -> None:
        mine = random.Random(seed)
        try:
            while time.monotonic() < stop:
                with ExitStack() as stack:
                    for name in mine.sample(names, mine.choice([1, 1, 1, 2])):  # some calls hold two, in any order
                        model = stack.enter_context(using(name, mine.random() < 0.98, build, again=name < "model 3"))
                        with counting:
                            model.inside += 1
                            calls[name] += 1
                        stack.callback(leave, model)
                        assert not model.parked
                        time.sleep(mine.random() / 1000)
                        assert not model.parked
        except BaseException as error:
            errors.append(error)
            raise

    def leave(model: Accelerated) -> None:
        with counting:
            model.inside -= 1

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors
    assert min(calls.values()) > 10
    monkeypatch.setenv("RLVF_MODELS_GB_CPU", "1000")
    for name in names:  # with nobody else there, it settles within the budget
        use(name, Accelerated(20 * GB), key=True)
        there = [resident_now(other) for other in names]
        on_device = [each.nbytes for each in there if isinstance(each, Accelerated) and not each.parked]
        assert sum(on_device) <= 80 * GB


def test_a_slow_build_holds_up_nobody_else() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def build() -> Accelerated:
        entered.set()
        assert go_on.wait(90)
        return Accelerated(70 * GB)

    def enter() -> None:
        with using("slow", 0, build, again=False):
            pass

    making = threading.Thread(target=enter, daemon=True)
    making.start()
    assert entered.wait(90)
    one, two = Accelerated(), Accelerated(60 * GB)
    for _ in range(2):
        use("one", one)
        use("two", two)
    assert two.moves == ["park", "unpark"]
    go_on.set()
    making.join(90)
    assert not making.is_alive()
    assert (one.parked, two.parked) == (True, True)
