"""Which models give way to others, and in what order."""

import weakref
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from infra.cluster import resident as module
from infra.cluster.resident import beside, drop, resident, resident_now, using
from infra.cluster.room import Room

GB = 10**9


@dataclass(frozen=True)
class Place:
    name: str = "cuda"
    total: int = 100 * GB
    apart: bool = True


CUDA, MPS, CPU = Place(), Place("mps", apart=False), Place("cpu", apart=False)


@dataclass(eq=False)
class Accelerated:
    """A model of so many bytes on a device that is not here; it knows where it is and who uses it."""

    nbytes: int = 40 * GB
    device: Place = CUDA
    moves: list[str] = field(default_factory=list)
    inside: int = 0
    parked: bool = False
    fails: bool = False

    @property
    def memory(self) -> "Accelerated":
        return self

    def park(self) -> None:
        assert not self.parked
        assert not self.inside
        self.parked = True
        self.moves.append("park")

    def unpark(self) -> None:
        assert self.parked
        if self.fails:
            raise MemoryError("no room there")
        self.parked = False
        self.moves.append("unpark")


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    made = Room()
    monkeypatch.setattr(module, "_room", made)
    monkeypatch.setenv("RLVF_MODELS_GB_CPU", "1000")
    return made


def use(name: str, model: Accelerated, key: object = 0, *, again: bool = False) -> Accelerated:
    with using(name, key, lambda: model, again=again) as found:
        assert not found.parked
    return found


def test_models_that_fit_stay() -> None:
    one, two = Accelerated(), Accelerated()  # 80 GB of 100 are for models
    use("one", one)
    use("two", two)
    one.moves.clear()  # nobody knew how large the second would be
    for _ in range(3):
        assert use("one", one) is one
        assert use("two", two) is two
    assert (one.moves, two.moves) == (["unpark"], [])


def test_the_one_that_was_used_longest_ago_is_parked_and_comes_back() -> None:
    models = {name: Accelerated() for name in ("one", "two", "three")}
    for name, model in models.items():
        use(name, model)
    use("one", models["one"])
    use("two", models["two"])
    assert [name for name, model in models.items() if model.parked] == ["three"]
    use("three", models["three"])
    assert [name for name, model in models.items() if model.parked] == ["one"]


def test_what_is_in_use_stays_though_there_are_too_many_and_a_line_says_which(caplog: pytest.LogCaptureFixture) -> None:
    models = {name: Accelerated(30 * GB) for name in ("one", "two", "three")}
    with ExitStack() as stack:
        for name, model in models.items():
            stack.enter_context(using(name, 0, lambda model=model: model, again=True))
        assert not any(model.moves for model in models.values())
    said = "cuda has 80 GB for models, and those that stay take more: one (30 GB), three (30 GB), two (30 GB)"
    assert [each.getMessage() for each in caplog.records] == [said]
    use("three", models["three"])
    assert [name for name, model in models.items() if model.parked] == ["two"]  # which was left before the first


def test_a_model_that_has_grown_is_counted_as_it_is() -> None:
    one, two = Accelerated(), Accelerated()
    use("one", one)
    use("two", two)
    with using("one", 0, Accelerated, again=False):
        one.nbytes = 60 * GB  # its optimizer has state by now
    assert not two.parked
    use("one", one)
    assert two.parked


def test_in_the_machine_s_memory_what_can_be_made_again_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RLVF_MODELS_GB_CPU", "100")
    trained, built = Accelerated(60 * GB, CPU), []

    def frozen() -> Accelerated:
        assert not any(of() for of in built)  # never two
        made = Accelerated(50 * GB, CPU)
        built.append(weakref.ref(made))
        return made

    for _ in range(2):
        use("learner", trained)
        with using("reference", 0, frozen, again=True):
            pass
    assert not trained.moves
    assert resident_now("learner") is trained
    assert len(built) == 2
    said = [each.getMessage() for each in caplog.records]
    assert said == [
        "cpu has 100 GB for models, and those that stay take more: learner (60 GB), reference (50 GB)",
        "reference (50 GB) is loaded anew for its turns: cpu has no room between them",
    ]


def test_a_known_size_has_room_before_it_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVF_MODELS_GB_CPU", "100")
    there = [use("one", Accelerated(60 * GB, CPU), again=True)]
    use("two", Accelerated(60 * GB, CPU), again=True)
    assert resident_now("one") is None

    def build() -> Accelerated:
        assert resident_now("two") is None
        return Accelerated(60 * GB, CPU)

    there.clear()
    with using("one", 0, build, again=True):
        pass


def test_a_device_that_shares_the_machine_s_memory_parks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVF_MODELS_GB_CPU", "60")
    trained, frozen = use("learner", Accelerated(device=MPS)), use("values", Accelerated(device=MPS), again=True)
    use("learner", trained)
    assert not trained.moves + frozen.moves
    assert resident_now("values") is None


def test_nothing_is_parked_where_the_machine_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVF_MODELS_GB_CPU", "50")
    trained = use("learner", Accelerated(60 * GB))
    frozen = use("values", Accelerated(), again=True)
    assert not trained.parked
    use("learner", trained)
    assert frozen.parked
    other = use("reference", Accelerated(), again=True)  # now there is room for one
    use("learner", trained)
    assert [resident_now(name) for name in ("values", "reference")] == [None, other]


def test_other_objects_count_for_the_machine_s_memory_and_stay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RLVF_MODELS_GB_CPU", "100")
    mirror = resident("mirror", 0, lambda: Accelerated(60 * GB))
    use("one", Accelerated(device=CPU), again=True)
    use("two", Accelerated(device=CPU), again=True)
    assert resident_now("one") is None
    assert resident_now("mirror") is mirror
    said = "cpu has 100 GB for models, and those that stay take more: mirror (60 GB), two (60 GB)"
    use("two", Accelerated(60 * GB, CPU), key=1)
    assert said in [each.getMessage() for each in caplog.records]


def test_where_a_model_does_not_come_back_it_stays_where_it_was() -> None:
    model, other = use("one", Accelerated(60 * GB)), Accelerated(60 * GB)
    use("two", other)
    model.fails = True
    with pytest.raises(MemoryError), using("one", 0, Accelerated, again=False):
        pass
    assert model.parked
    model.fails = False
    assert use("one", model) is model
    assert other.parked


def test_a_build_that_fails_counts_for_nothing() -> None:
    one = use("one", Accelerated(50 * GB), again=True)

    def fail() -> Accelerated:
        raise OSError("no such weights")

    with pytest.raises(OSError, match="no such weights"), using("one", 1, fail, again=True):
        pass
    assert beside("") == ""
    use("two", Accelerated(70 * GB))
    assert use("one", one, 1) is one
    assert beside("one") == ""
    assert beside("two") == "one (50 GB)"


def test_a_model_that_was_dropped_under_a_call_is_its_until_then() -> None:
    with using("one", 0, Accelerated, again=False) as model:
        drop("one")
        with using("one", 0, Accelerated, again=False) as another:
            assert another is not model
        model.nbytes = 90 * GB
    two = use("two", Accelerated(30 * GB))
    assert use("one", another) is another
    assert not two.moves


def test_the_old_version_is_gone_before_the_new_one_is_built() -> None:
    with using("one", 0, Accelerated, again=True) as model:
        old = weakref.ref(model)
    del model

    def build() -> Accelerated:
        assert old() is None
        return Accelerated()

    with using("one", 1, build, again=True):
        pass
