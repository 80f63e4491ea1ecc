import re
from itertools import islice

from rl.arithmetic import evaluate
from rl.model.tiny import build_tokenizer
from rl.problems.made.arithmetic import WORDINGS, stream
from rl.problems.made.grammar import HELD_OUT_SHARE
from rl.problems.shown import shown

A, B, C, D = 40, 7, 5, 3
VALUES = {  # as a person reads each, of 40, 7, 5 and 3
    "add 40 and 7.": 47,
    "multiply 40 by 7.": 280,
    "subtract 7 from 40.": 33,
    "what is left when you take 7 from 40?": 33,
    "add 40, 7 and 5.": 52,
    "what is 40 plus 7, minus 5?": 42,
    "add 40 and 7, then subtract 5.": 42,
    "take 7 away from 40, then add 5.": 38,
    "take the difference of 40 and 7 and subtract it from 5.": -28,
    "add 40 to the product of 7 and 5.": 75,
    "subtract the product of 7 and 5 from 40.": 5,
    "multiply 40 by 7, then add 5.": 285,
    "multiply 40 by 7, then subtract 5 from the product.": 275,
    "what is the product of 40 and 7, less 5?": 275,
    "what is the sum of 40 and 7, times 5?": 235,
    "add 40 and 7, then multiply the sum by 5.": 235,
    "increase 40 by 7, then multiply the result by 5.": 235,
    "subtract 7 from 40, then multiply the difference by 5.": 165,
    "start with 40, subtract 7, then multiply by 5 and add 3.": 168,
    "add 40 and 7, multiply the sum by 5, then subtract 3.": 232,
    "add 40, 7 and 5, then multiply the total by 3.": 156,
    "add 40 and 7, add 5 and 3, then multiply the two sums.": 376,
    "multiply 40 by 7, multiply 5 by 3, then add the products.": 295,
    "multiply 40 by 7, add 5, then multiply the result by 3.": 855,
}


def test_each_wording_asks_for_what_a_person_reads() -> None:
    numbers = {"a": A, "b": B, "c": C, "d": D}
    found = {wording.format(**numbers): evaluate(target.format(**numbers)) for wording, target in WORDINGS}
    assert found == VALUES


def test_problems_depend_on_seed_and_step_alone_and_use_every_wording() -> None:
    assert list(islice(stream(1, 2), 10))[:5] == list(islice(stream(1, 2), 5))
    assert len({next(stream(seed, step)).prompt for seed in range(5) for step in range(5)}) > 20
    assert len({re.sub(r"\d+", "#", problem.prompt) for problem in islice(stream(0, 0), 500)}) == len(WORDINGS)


def test_what_is_held_out_is_neither_trained_on_nor_shown_in_the_warm_up() -> None:
    held_out = {problem.prompt for problem in islice(stream(7, 0, "held_out"), 300)}
    assert len(held_out) > 250
    assert held_out.isdisjoint(problem.prompt for step in range(50) for problem in islice(stream(0, step), 64))
    assert held_out.isdisjoint(each.problem.prompt for step in range(400) for each in shown("grammar", 0, step, 16))
    *_, last = islice(stream(3, 1, "held_out"), 100)
    assert abs(100 / int(last.source.rpartition(".")[2]) - 1 / HELD_OUT_SHARE) < 0.03


def test_the_tokenizer_knows_every_word() -> None:
    tokenizer = build_tokenizer()
    for wording, target in WORDINGS:
        for text in (wording, target):
            plain = re.sub(r"\{\w\}", "4", text)
            assert tokenizer.unk_token_id not in tokenizer(plain)["input_ids"]
            assert len(tokenizer(plain)["input_ids"]) <= 2 * len(plain.split()) + 4  # no word is spelled
