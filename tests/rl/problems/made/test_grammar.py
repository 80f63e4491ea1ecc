import math
import re
from collections.abc import Callable

import pytest

from rl.arithmetic import MAX_CHARACTERS, evaluate
from rl.problems.made.grammar import LARGEST, is_held_out, stream
from rl.problems.shown import shown
from rl.records import Problem
from tests.streams import drawing

draw = drawing(stream)


@pytest.fixture(scope="module")
def many() -> list[Problem]:
    return draw(0, 0, 6000)


# An independent reader: a prompt is clauses that work on a stack of results. `it` names the last result.
NUMBER = r"\d+"
LIST = rf"({NUMBER}(?:, {NUMBER})*,? and {NUMBER})"
NOUN = rf"(the (?:sum|product|difference) of {NUMBER} and {NUMBER}|{NUMBER})"
IT = r"(?:that|it|the result|(?:that|the) (?:number|sum|difference|product))"
BOTH = r"(?:them|(?:the|both)(?: two)? (?:results|sums|differences|products|numbers))(?: together)?"
LINK = re.compile(r", and then |, then |, |\.$")


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(NUMBER, text)]


def noun(text: str) -> int:
    values = numbers(text)
    if text.startswith("the difference"):
        return values[0] - values[1]
    return math.prod(values) if text.startswith("the product") else sum(values)


def changed(by: Callable[[int, int], int]) -> Callable[..., None]:
    return lambda results, operand: results.append(by(results.pop(), noun(operand)))


def opened(of: Callable[[list[int]], int]) -> Callable[..., None]:
    return lambda results, *given: results.append(of(numbers(" ".join(given))))


def joined(by: Callable[[int, int], int]) -> Callable[..., None]:
    return lambda results: results.append(by(*[results.pop() for _ in range(2)][::-1]))


CLAUSES: list[tuple[str, Callable[..., None]]] = [
    (rf"(?:add|sum|add up|take the sum of|find the total of) {LIST}(?: together)?", opened(sum)),
    (rf"take ({NUMBER}(?: plus {NUMBER})+)", opened(sum)),
    (rf"(?:subtract|take) ({NUMBER}) (?:away )?from ({NUMBER})", opened(lambda n: n[1] - n[0])),
    (rf"take ({NUMBER}) minus ({NUMBER})", opened(lambda n: n[0] - n[1])),
    (rf"(?:decrease|start with) ({NUMBER}) (?:by|and subtract) ({NUMBER})", opened(lambda n: n[0] - n[1])),
    (rf"find the difference of ({NUMBER} and {NUMBER})", opened(lambda n: n[0] - n[1])),
    (rf"(?:multiply|find the product of) {LIST}(?: together)?", opened(math.prod)),
    (rf"multiply ({NUMBER} by {NUMBER})", opened(math.prod)),
    (rf"take ({NUMBER}(?: times {NUMBER})+)", opened(math.prod)),
    (rf"add {BOTH}", joined(lambda a, b: a + b)),
    (rf"multiply {BOTH}", joined(lambda a, b: a * b)),
    (r"subtract the second (?:result )?from the first|take the first minus the second", joined(lambda a, b: a - b)),
    (rf"add {NOUN}(?: to {IT})?", changed(lambda a, b: a + b)),
    (rf"(?:increase {IT} by|add {IT} to) {NOUN}", changed(lambda a, b: a + b)),
    (rf"subtract {NOUN}(?: from {IT})?", changed(lambda a, b: a - b)),
    (rf"(?:take away|decrease {IT} by) {NOUN}", changed(lambda a, b: a - b)),
    (rf"(?:multiply|multiply {IT}) by {NOUN}", changed(lambda a, b: a * b)),
    (rf"take {IT} times {NOUN}", changed(lambda a, b: a * b)),
    (rf"subtract {IT} from {NOUN}", changed(lambda a, b: b - a)),
    (rf"take {NOUN} minus {IT}", changed(lambda a, b: b - a)),
]
QUESTIONS: list[tuple[str, Callable[[int, int, int], int]]] = [
    (rf"the sum of {NUMBER} and {NUMBER}, times {NUMBER}", lambda a, b, c: (a + b) * c),
    (rf"the product of {NUMBER} and {NUMBER}, minus {NUMBER}", lambda a, b, c: a * b - c),
    (rf"{NUMBER} plus {NUMBER} times {NUMBER}", lambda a, b, c: a + b * c),
]


def understood(prompt: str) -> int:
    """The value that the prompt asks for; a wording that is not known is an error."""
    for pattern, answer in QUESTIONS:
        if re.fullmatch(rf"(?:what is |find |compute ){pattern}[.?]", prompt):
            return answer(*numbers(prompt))
    results: list[int] = []
    while prompt:
        # a list has commas too, so the longest clause that stops at a link is the one
        found = [
            (end, act, match)
            for end in (link.start() for link in LINK.finditer(prompt))
            for pattern, act in CLAUSES
            if (match := re.fullmatch(pattern, prompt[:end]))
        ]
        assert found, prompt
        end, act, match = max(found, key=lambda one: one[0])
        act(results, *match.groups())
        link = LINK.match(prompt, end)
        assert link
        prompt = prompt[link.end() :]
    (value,) = results
    return value


@pytest.mark.slow
def test_every_target_is_what_the_words_of_its_prompt_ask_for(many: list[Problem]) -> None:
    for problem in many:
        assert evaluate(problem.target) == understood(problem.prompt), problem


@pytest.mark.parametrize(
    ("prompt", "value"),
    [
        ("add 2, 3, and 4.", 9),
        ("subtract 2 from 9, then multiply by the sum of 1 and 2.", 21),
        ("add 2 and 3, add 4 and 5, and then multiply the sums.", 45),
        ("multiply 2 by 3, take 9 minus 4, subtract the second from the first, then subtract that from 10.", 9),
        ("what is 2 plus 3 times 4?", 14),
    ],
)
def test_the_reader_above_reads(prompt: str, value: int) -> None:
    assert understood(prompt) == value


def test_problems_are_a_function_of_seed_and_step() -> None:
    assert draw(5, 7, 50) == draw(5, 7, 50)
    prompts = [{problem.prompt for problem in draw(seed, step, 50)} for seed, step in ((5, 7), (5, 8), (6, 7))]
    assert len(set.union(*prompts)) > 120  # a few short ones may coincide


def test_skip_continues_the_same_stream() -> None:
    assert draw(5, 7, 12) + draw(5, 7, 18, skip=12) == draw(5, 7, 30)


@pytest.mark.slow
def test_train_and_held_out_share_no_prompt_whatever_the_seeds(many: list[Problem]) -> None:
    held_out = {problem.prompt for seed in range(2) for problem in draw(seed, 0, 250, side="held_out")}
    train = {problem.prompt for problem in many} | {problem.prompt for problem in draw(1, 3, 2000)}
    assert len(held_out) > 400
    assert not train & held_out


def test_training_draws_what_the_warm_up_has_not_shown_with_its_answer() -> None:
    warm = {each.problem.prompt for step in range(100) for each in shown("grammar", 0, step, 16)}
    drawn = [problem.prompt for step in range(50) for problem in draw(0, step, 32)]
    assert sum(prompt in warm for prompt in drawn) < len(drawn) / 100  # short ones coincide by chance
    assert not any(is_held_out(prompt) for prompt in warm)


def test_every_target_can_be_evaluated_and_uses_the_numbers_of_its_prompt(many: list[Problem]) -> None:
    for problem in many:
        evaluate(problem.target)
        used = sorted(numbers(problem.prompt))
        assert used == sorted(numbers(problem.target))
        assert 1 <= used[0] <= used[-1] <= LARGEST
        assert len(problem.target) < MAX_CHARACTERS


def test_the_grammar_is_broad(many: list[Problem]) -> None:
    wordings = {re.sub(r"\d+", "N", problem.prompt) for problem in many}
    shapes = {re.sub(r"\d+", "N", problem.target) for problem in many}
    assert len(wordings) > 2000
    assert len(shapes) > 200
    assert {sign for problem in many for sign in problem.target if not sign.isdigit()} == set("+-*() ")


def test_sources_tell_problems_apart(many: list[Problem]) -> None:
    assert len({problem.source for problem in many}) == len(many)
