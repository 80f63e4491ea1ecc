"""What episodes cost beside their actions: `python -m tests.bench.environments [EPISODES TURNS]`.

Seconds for a sandbox, an episode in one, an action, and an episode that is made again from its actions.
"""

import sys
import time
from itertools import islice

from rl.environments.episode import Episode
from rl.environments.sessions import Sessions
from rl.environments.spec import EnvironmentSpec
from rl.environments.turn import ToolCall
from rl.problems.played.calculator import stream

ACTION = (ToolCall("calculate", {"expression": "3 + 4"}),)


def main(episodes: int, turns: int) -> None:
    sessions = Sessions(EnvironmentSpec(name="calculator"))
    begin = time.perf_counter()
    _ = sessions.interface
    print(f"a sandbox              {time.perf_counter() - begin:8.4f} s")
    each = [Episode(problem.source, problem) for problem in islice(stream(0, 0), episodes)]
    begin = time.perf_counter()
    each = [episode.opened(outcome) for episode, outcome in zip(each, sessions.open(each), strict=True)]
    print(f"an episode             {(time.perf_counter() - begin) / episodes:8.4f} s (of {episodes})")
    begin = time.perf_counter()
    for _ in range(turns):
        outcomes = sessions.act(each, [ACTION] * episodes)
        each = [episode.after(ACTION, outcome) for episode, outcome in zip(each, outcomes, strict=True)]
    assert not [outcome.error for outcome in outcomes if outcome.error]
    print(f"an action              {(time.perf_counter() - begin) / episodes / turns:8.4f} s")
    sessions.close(episode.key for episode in each)
    begin = time.perf_counter()
    assert not [outcome.error for outcome in sessions.act(each, [ACTION] * episodes) if outcome.error]
    print(f"made again, {turns} actions  {(time.perf_counter() - begin) / episodes:8.4f} s")
    begin = time.perf_counter()
    sessions.end()
    print(f"the end of all         {time.perf_counter() - begin:8.4f} s")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:] or ("128", "8")))
