"""The calls of a step: what follows from what an algorithm declares, and what is refused."""

import re
from typing import ClassVar

import pytest

from rl.algorithms import ALGORITHMS
from rl.algorithms.reinforce import Reinforce
from rl.graph import GENERATE, VERIFY, Call, Graph, GraphError, graph_of

TRAIN = Call("train", "actor", ("rollouts", "rewards"), ("learned",), "batch")


class WithCritic(Reinforce):
    needs: ClassVar = frozenset({"values"})


def test_a_call_comes_after_those_that_write_what_it_reads() -> None:
    graph = Graph([TRAIN, VERIFY, GENERATE])
    assert [call.name for call in graph.calls] == ["generate", "verify", "train"]
    assert graph.before(TRAIN) == ("generate", "verify")
    assert (graph.models, graph.scores) == (("actor",), ())
    assert [call.trains for call in graph.calls] == [False, False, True]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_makes_a_graph(name: str) -> None:
    graph = graph_of(ALGORITHMS[name]())
    assert {"generate", "verify", "train"} <= {call.name for call in graph.calls}


def test_what_an_algorithm_declares_becomes_calls() -> None:
    graph = graph_of(WithCritic(), ["reference_logprobs"])
    assert {call.name for call in graph.scores} == {"value", "reference"}
    assert graph.models == ("actor", "reference", "critic")
    assert {call.name for call in graph.calls if call.trains} == {"train", "train_critic"}
    train = next(call for call in graph.calls if call.name == "train")
    assert graph.before(train) == ("generate", "verify", "reference", "value")


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([GENERATE, TRAIN], "train reads rewards, which no call writes"),
        (
            [GENERATE, Call("verify", None, ("rolouts",), ("rewards",), "lease")],
            "verify names 'rolouts', which is no field of a batch; did you mean rollouts?",
        ),
        ([GENERATE, Call("value", "critic", ("rollouts",), ("valeus",), "lease")], "did you mean values?"),
        ([GENERATE, GENERATE], "two calls are named generate"),
        ([VERIFY, Call("reward", "reward", (), ("rewards",), "lease")], "rewards is written by verify and by reward"),
        (
            [
                Call("value", "critic", ("rewards",), ("values",), "lease"),
                Call("reward", "reward", ("values",), ("rewards",), "lease"),
            ],
            "the calls wait for each other: ",
        ),
    ],
)
def test_what_makes_no_graph_is_refused_by_its_name(calls: list[Call], says: str) -> None:
    with pytest.raises(GraphError, match=re.escape(says)):
        Graph(calls)
