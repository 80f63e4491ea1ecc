"""Which sequences run, in which row, behind which place: against a plain list of what should be there."""

from hypothesis import given
from hypothesis import strategies as st

from rl.sampling.scheduling import Draw, Scheduler, closing


def schedule(rows: int, places: int) -> Scheduler:
    made = Scheduler()
    made.most_rows, made.most_places, made.longest_prompt, made.longest_own = rows, places, 9, 9
    return made


def entered(plan: Scheduler) -> list[tuple[Draw, int]]:
    found = []
    while (entry := plan.next_entry()) is not None:
        found.append(entry)
    return found


def add(plan: Scheduler, *prompts: int) -> list[Draw]:
    draws = [Draw((prompt,), 9, None, number=number) for number, prompt in enumerate(prompts)]
    plan.waiting.extend(draws)
    return draws


def test_sequences_of_a_prompt_share_a_place_and_enter_in_their_order() -> None:
    plan = schedule(5, 2)
    draws = add(plan, 7, 7, 8, 7, 9, 7)
    assert entered(plan) == [(draws[0], 0), (draws[1], 0), (draws[2], 1), (draws[3], 0)]
    assert list(plan.waiting) == draws[4:]  # nobody overtakes the one for whose prompt there is no place
    assert plan.leave(plan.moves([2]), [2]) == []
    assert entered(plan) == [(draws[4], 1), (draws[5], 0)]


def test_a_sequence_too_long_for_the_rows_waits() -> None:
    plan = schedule(2, 2)
    add(plan, 7)
    plan.waiting[0].limit = 10
    assert entered(plan) == []
    plan.longest_own = 10
    assert len(entered(plan)) == 1


def test_the_prompt_of_older_weights_is_another_place() -> None:
    plan = schedule(2, 2)
    add(plan, 7)
    assert [place for _, place in entered(plan)] == [0]
    assert plan.change() == []
    add(plan, 7)
    assert [place for _, place in entered(plan)] == [1]


def test_other_weights_take_the_place_that_was_kept_for_the_next_one() -> None:
    plan = schedule(1, 1)
    add(plan, 7, 7)
    entered(plan)
    assert plan.leave(plan.moves([0]), [0]) == []
    assert len(plan.places) == 1
    assert plan.change() == []
    assert [place for _, place in entered(plan)] == [0]


def test_what_runs_goes_back_to_where_it_was_in_the_queue() -> None:
    plan = schedule(3, 3)
    draws = add(plan, 7, 8, 9, 7)
    entered(plan)
    plan.leave(plan.moves([0]), [0])  # the order of rows is another now
    plan.clear()
    assert list(plan.waiting) == draws[1:]
    assert plan.rows == plan.places == plan.place_of == []


@given(st.integers(0, 12).flatmap(lambda count: st.tuples(st.just(count), st.sets(st.integers(0, max(0, count - 1))))))
def test_gaps_are_closed_by_the_last_and_nothing_is_lost(case: tuple[int, set[int]]) -> None:
    count, gone = case
    gone &= set(range(count))
    things = list(range(count))
    moves = closing(gone, count)
    assert {move.source for move in moves}.isdisjoint(move.to for move in moves)
    for to, source in moves:
        things[to] = source
    assert sorted(things[: count - len(gone)]) == sorted(set(range(count)) - gone)


@given(st.integers(1, 5), st.integers(1, 4), st.lists(st.integers(0, 3), max_size=25), st.data())
def test_every_sequence_runs_once_behind_its_own_prompt(
    rows: int, places: int, prompts: list[int], data: st.DataObject
) -> None:
    plan = schedule(rows, places)
    draws = add(plan, *prompts)
    kept: list[int | None] = [None] * places  # what a cache would hold: the prompt of each place
    over = []
    while plan.rows or plan.waiting:
        for draw, place in entered(plan):
            if place >= sum(each is not None for each in kept):
                kept[place] = draw.prompt[0]
        assert 0 < len(plan.rows) <= rows
        assert len(plan.places) <= places
        assert [kept[place] for place in plan.place_of] == [draw.prompt[0] for draw in plan.rows]
        gone = data.draw(st.sets(st.integers(0, len(plan.rows) - 1), min_size=1))
        over += [plan.rows[row] for row in gone]
        for to, source in plan.leave(plan.moves(gone), gone):
            kept[to] = kept[source]
        kept[len(plan.places) :] = [None] * (places - len(plan.places))
    assert sorted(draw.number for draw in over) == [draw.number for draw in draws]
