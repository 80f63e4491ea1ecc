"""Questions about tables of people, and the SQL that makes the tables; `query` in a problem is SQL that answers it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from rl.problems.made.grammar import Wording, is_held_out
from rl.problems.streams import Side
from rl.records import Problem

STREAM = (15,)  # keeps these draws apart from others with the same seed
NAMES = "Ada Ben Cleo Dan Eva Finn Gia Hugo Ines Jon Kim Leo Mia Ned Ola Pia".split()
CITIES = "Bern Cork Graz Lyon Oslo Pisa".split()
ITEMS = "book cup lamp pen shoe".split()
PEOPLE, ORDERS = (5, 12), (6, 20)  # how many rows, from the first to the second


@dataclass(frozen=True)
class Person:
    name: str
    city: str
    age: int


@dataclass(frozen=True)
class Order:
    name: str  # of who has ordered
    item: str
    price: int


class Question(Wording):
    """One problem's random choices."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        names = [NAMES[at] for at in rng.permutation(len(NAMES))[: self.between(*PEOPLE)]]
        ages = rng.permutation(range(20, 80))[: len(names)].tolist()  # all others: one is the oldest
        self.people = [Person(name, self.pick(*CITIES), age) for name, age in zip(names, ages, strict=True)]
        self.orders = [
            Order(self.pick(*names), self.pick(*ITEMS), self.between(2, 99)) for _ in range(self.between(*ORDERS))
        ]

    def between(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def tables(self) -> str:
        people = ", ".join(f"('{one.name}', '{one.city}', {one.age})" for one in self.people)
        orders = ", ".join(f"('{one.name}', '{one.item}', {one.price})" for one in self.orders)
        return (
            f"create table people (name text, city text, age integer);\ninsert into people values {people};\n"
            f"create table orders (name text, item text, price integer);\ninsert into orders values {orders};"
        )

    def asked(self) -> tuple[str, str, str]:
        """The question, its answer, found without SQL, and SQL that finds it."""
        city, item, age = self.pick(*CITIES), self.pick(*ITEMS), self.between(25, 70)
        name = self.pick(*self.people).name
        living = {one.name for one in self.people if one.city == city}
        match self.pick("living", "older", "oldest", "spent", "bought", "dearest", "city"):
            case "living":
                words = self.pick("How many people live in {}?", "What is the number of people in {}?").format(city)
                return words, str(len(living)), f"select count(*) from people where city = '{city}'"
            case "older":
                found = sum(one.age > age for one in self.people)
                return (
                    f"How many people are older than {age}?",
                    str(found),
                    (f"select count(*) from people where age > {age}"),
                )
            case "oldest":
                first = self.pick("oldest", "youngest")
                one = (max if first == "oldest" else min)(self.people, key=lambda one: one.age)
                order = "desc" if first == "oldest" else "asc"
                return f"Who is the {first}?", one.name, f"select name from people order by age {order} limit 1"
            case "spent":
                spent = sum(one.price for one in self.orders if one.name == name)
                words = self.pick("What is the sum of {}'s orders?", "How much has {} spent?").format(name)
                return words, str(spent), f"select coalesce(sum(price), 0) from orders where name = '{name}'"
            case "bought":
                found = sum(one.item == item and one.name in living for one in self.orders)
                return (
                    f"How many orders of a {item} come from people in {city}?",
                    str(found),
                    (f"select count(*) from orders join people using (name) where item = '{item}' and city = '{city}'"),
                )
            case "dearest":
                prices = [one.price for one in self.orders if one.item == item]
                return (
                    f"What is the highest price of a {item}, or 0 if none was ordered?",
                    str(max(prices, default=0)),
                    (f"select coalesce(max(price), 0) from orders where item = '{item}'"),
                )
            case _:
                older = {one.city for one in self.people if one.age > age}
                return (
                    f"In how many cities does somebody older than {age} live?",
                    str(len(older)),
                    (f"select count(distinct city) from people where age > {age}"),
                )


def stream(seed: int, step: int, side: Side = "train") -> Iterator[Problem]:
    """The endless sequence of problems of one step, a function of (seed, step, side). A question about other tables is
    another problem."""
    for index in count():
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, index], spawn_key=STREAM)))
        question = Question(rng)
        prompt, target, query = question.asked()
        columns = {"tables": question.tables(), "query": query}
        if is_held_out(f"{prompt} {columns['tables']}") == (side == "held_out"):
            yield Problem(prompt, target, f"sqlite:{seed}.{step}.{index}", columns)
