"""Lines that say which workers come and go."""

from dataclasses import replace

from infra.cluster.placement import Offer
from infra.dispatch.presence import Presence


def offer(name: str, process: int = 1) -> Offer:
    return Offer(f"tcp://{name}:{process}", name, {"GENERATOR": 1.0})


def test_what_is_there_first_is_no_news_and_each_change_is_said_once() -> None:
    said: list[str] = []
    presence = Presence(said.append)
    laptop, jetson, trainer = offer("laptop"), offer("jetson"), offer("trainer")
    jetson_2, laptop_2 = offer("jetson", 2), offer("laptop", 2)
    answers: list[tuple[list[Offer], list[str]]] = [
        ([laptop, trainer], []),
        ([laptop, trainer, jetson], ["jetson has joined"]),
        ([trainer, jetson], ["laptop is gone"]),
        ([trainer, jetson_2], ["jetson was started again"]),
        ([trainer, jetson_2, laptop_2], ["laptop is there again"]),
        ([trainer, jetson_2, replace(laptop_2, leaves=True)], []),
        ([trainer, jetson_2], ["laptop has left"]),
        ([], ["jetson, trainer are gone"]),
        ([offer(f"n{number}") for number in range(6)], ["n0, n1, n2, n3 and 2 more have joined"]),
    ]
    for asked, (there, lines) in enumerate(answers):
        said.clear()
        presence.tell(float(asked), there)
        presence.tell(float(asked), there)
        assert said == lines


def test_an_older_answer_that_comes_late_says_nothing() -> None:
    said: list[str] = []
    presence = Presence(said.append)
    presence.tell(1.0, [offer("laptop")])
    presence.tell(3.0, [offer("laptop"), offer("jetson")])
    presence.tell(2.0, [offer("laptop")])
    presence.tell(4.0, [replace(offer("laptop"), seen=9.0), offer("jetson")])
    assert said == ["jetson has joined"]
