"""Objects that stay in a process between calls."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from infra.cluster.resident import drop, resident


class Model:
    pass


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    yield
    drop("model")


def test_it_is_built_once_per_key() -> None:
    first = resident("model", 1, Model)
    assert resident("model", 1, Model) is first
    assert resident("model", 2, Model) is not first


def test_the_old_object_is_gone_before_the_new_one_is_built() -> None:
    old = weakref.ref(resident("model", 1, Model))

    def build() -> Model:
        gc.collect()
        assert old() is None
        return Model()

    resident("model", 2, build)


def test_a_failed_build_leaves_nothing_and_is_tried_again() -> None:
    resident("model", 1, Model)

    def fail() -> Model:
        raise OSError("no such weights")

    with pytest.raises(OSError, match="no such weights"):
        resident("model", 2, fail)
    assert isinstance(resident("model", 2, Model), Model)


def test_threads_share_one_build() -> None:
    entered, go_on, built = threading.Event(), threading.Event(), []

    def build() -> Model:
        built.append(1)
        entered.set()
        assert go_on.wait(90)
        return Model()

    got: list[Model] = []
    threads = [threading.Thread(target=lambda: got.append(resident("model", 1, build))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(90)
    go_on.set()
    for thread in threads:
        thread.join(90)
    assert len(built) == 1
    assert len(got) == 4
    assert len(set(map(id, got))) == 1


def test_another_name_is_built_while_one_is_being_built() -> None:
    def build() -> Model:
        other: list[object] = []
        thread = threading.Thread(target=lambda: other.append(resident("tokenizer", 1, object)))
        thread.start()
        thread.join(90)
        assert other
        return Model()

    resident("model", 1, build)
    drop("tokenizer")


def test_dropped_is_built_again() -> None:
    first = resident("model", 1, Model)
    drop("model")
    assert resident("model", 1, Model) is not first
