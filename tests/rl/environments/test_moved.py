"""Episodes that go to and fro between machines, from any of their turns, while processes are lost."""

import random

import pytest

from rl.environments.instance import MAX_CALLS, MAX_TEXT
from rl.environments.turn import ToolCall
from tests.rl.environments.playing import acted, begun, said, sessions_of

COUNT = """
class Count:
    turns, memory = 100, 128

    def reset(self, target, **_):
        self.words = [target]

    def step(self, text):
        self.words.append(text)
        return f"{len(self.words)} {' '.join(self.words)}"
"""
WIDE = """
class Wide:
    def reset(self, **_): ...

    def much(self) -> str:
        '''Much.'''
        return "\\0" * 10**6

    def get_reward(self):
        return 1
"""


@pytest.mark.slow
def test_an_episode_is_its_actions_whatever_is_lost_in_between() -> None:
    rng, machines = random.Random(3), [sessions_of(COUNT, "Count") for _ in range(2)]
    ways = {name: begun(machines[0], [name]) for name in ("p", "q", "s")}
    for turn in range(40):
        machine = rng.choice(machines)
        asked = [rng.choice(ways[name]) for name in rng.sample([*ways], 2)]  # gone on from any turn, more than once
        for episode in acted(machine, asked, f"a{rng.randrange(3)}"):
            words = [episode.key, *(str(action) for action, _ in episode.turns)]
            assert said([episode]) == [f"{len(words)} {' '.join(words)}"]
            ways[episode.key] = [*ways[episode.key], episode][-6:]
        if rng.random() < 0.2:
            machine.close(rng.sample([*ways], 2))
        if turn == 20:
            machine._hosts[0].kill()
    for machine in machines:
        machine.end()


def test_the_largest_answer_is_read() -> None:
    sessions = sessions_of(WIDE, "Wide")
    (episode,) = acted(sessions, begun(sessions, ["one"]), tuple(ToolCall("much", {}) for _ in range(MAX_CALLS)))
    assert episode.last is not None
    assert [len(one) > MAX_TEXT for one in episode.last.observations] == [True] * MAX_CALLS
    sessions.end()
