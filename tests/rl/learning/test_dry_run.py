"""An algorithm of the user's on a batch that is made up: what no update can use is said in a line."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rl.algorithms import ALGORITHMS
from rl.algorithms.own import OwnAlgorithmError
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.dry_run import try_algorithm
from rl.learning.kl_config import KlConfig
from rl.learning.learner import Learner
from rl.learning.objective import EVERY
from rl.records import Batch
from tests.rl.updates import PLAIN, Make

REINFORCE = "from rl.algorithms.reinforce import *\nimport numpy as np\nimport torch\nclass Mine(Reinforce):\n"
ADVANTAGES = "    def advantages(self, batch):\n        return "
TOKEN_MASK = "    def token_mask(self, log_ratio, advantage):\n        return "
TOKEN_LOSS = "    def token_loss(self, tokens):\n        return "


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (
            f"{ADVANTAGES}batch.reward",
            r"mine.py:Mine: AttributeError: 'Batch' object has no attribute 'reward'.*\(line 6\)",
        ),
        (f"{TOKEN_LOSS}TokenLoss(tokens.nothing)", r"AttributeError: .*nothing.* \(line 6\)"),
        (f"{ADVANTAGES}batch.values - 1", r"TypeError: .* \(line 6\)"),  # without needs there are none
        (f"{ADVANTAGES}batch.rewards.mean(axis=1)", r"advantages gives \[2\]; give \[2, 3\] or \[2, 3, 3\]"),
        (f"{ADVANTAGES}torch.zeros(2, 3)", "advantages gives Tensor; give a numpy array"),
        (f"{ADVANTAGES}batch.rewards / np.zeros(1, np.float32)", "advantages gives (inf|nan), which is not finite"),
        (
            f"    every_group = True\n{ADVANTAGES}batch.rewards / np.ptp(batch.rewards, axis=1, keepdims=True)",
            "advantages gives (inf|nan), which is not finite",
        ),
        (f"{TOKEN_LOSS}-tokens.logprobs", r"token_loss gives Tensor; give TokenLoss\(value\)"),
        (f"{TOKEN_LOSS}TokenLoss(tokens.logprobs.mean())", r"token_loss: value is \[\]; give a tensor of \[N\] tokens"),
        (f"{TOKEN_LOSS}TokenLoss(tokens.advantage)", "value does not follow from tokens.logprobs"),
        (f"{TOKEN_LOSS}TokenLoss(tokens.logprobs, {{'mine': 1.0}})", r"metrics\['mine'\] is float"),
        (f"{TOKEN_LOSS}TokenLoss((tokens.logprobs * 0).sqrt())", "value or its gradient is not finite"),
        (
            f"{ADVANTAGES}batch.rewards - batch.rewards.mean()",
            "advantages gives nan, which is not finite",
        ),  # no verdict
        (
            f"{TOKEN_LOSS}TokenLoss(-tokens.logprobs, {{'entropy': tokens.advantage}})",
            r"metrics\['entropy'\]: 'entropy' is of every update; give another one",
        ),
        (
            f"{TOKEN_LOSS}TokenLoss(-tokens.logprobs, {{'a b/c': tokens.advantage}})",
            r"metrics\['a b/c'\]: 'a b/c' is no name of letters",
        ),
        ("    aggregation = 'sequences'", "aggregation is 'sequences'; give token, sequence, constant"),
        (
            "    def advantage(self, batch):\n        return 0",
            "advantage is nothing that is read; did you mean advantages",
        ),
        ("    every_groups: ClassVar[bool] = True", "every_groups is nothing that is read; did you mean every_group"),
    ],
)
def test_a_formula_that_fails_is_one_line(method: str, says: str) -> None:
    with pytest.raises(OwnAlgorithmError, match=says) as refused, np.errstate(all="ignore"):
        try_algorithm(AlgorithmSpec(name="mine.py:Mine", text=f"{REINFORCE}{method}\n"))
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("kl", [KlConfig(), KlConfig(coefficient=0.1), KlConfig(coefficient=0.1, in_reward=True)])
def test_what_every_built_in_algorithm_gives_is_let_through(name: str, kl: KlConfig) -> None:
    try_algorithm(AlgorithmSpec(name=name, kl=kl))


@pytest.mark.parametrize(
    ("base", "body", "kind", "says"),
    [
        ("Grpo", "    pass", "divergence", "mine.py:Mine clips the same ratio to mu"),
        ("Grpo", f"{TOKEN_MASK}advantage > 0", "mask", "mine.py:Mine leaves tokens out .* and mask would do it again"),
        ("Cispo", "    pass", "divergence", ""),
        ("Cispo", f"{TOKEN_MASK}advantage > 0", "none", ""),
    ],
)
def test_a_correction_is_refused_where_the_users_loss_has_one_of_the_same_ratio(
    base: str, body: str, kind: str, says: str
) -> None:
    text = f"from rl.algorithms.{base.lower()} import *\nclass Mine({base}):\n{body}\n"
    spec = AlgorithmSpec.model_validate({"name": "mine.py:Mine", "text": text, "correction": {"kind": kind}})
    if not says:
        try_algorithm(spec)
        return
    with pytest.raises(OwnAlgorithmError, match=f"algorithm.correction: .*{says}"):
        try_algorithm(spec)


def test_the_names_that_are_taken_are_those_of_every_update(make_policy: Make, drawn: Callable[..., Batch]) -> None:
    spec = AlgorithmSpec(name="m2po", kl=KlConfig(coefficient=0.1), minibatches=2, proximal="recomputed")
    learner = Learner(make_policy(eager=4.0), PLAIN)
    batch = drawn(learner.policy)
    learned = learner.update(replace(batch, reference_logprobs=batch.rollouts.logprobs), spec, 1.0)
    named = {name.removeprefix("policy/") for name in learned.metrics if name.startswith("policy/")}
    assert named | {"loss", "kl_reference"} == set(EVERY)


@pytest.mark.parametrize("name", ["loss", "entropy"])
def test_a_metric_of_an_algorithm_takes_the_place_of_no_other_in_an_update(
    make_policy: Make, drawn: Callable[..., Batch], name: str
) -> None:
    text = f"{REINFORCE}{TOKEN_LOSS}TokenLoss(-tokens.logprobs, {{'{name}': tokens.advantage}})\n"
    learner = Learner(make_policy(eager=4.0), PLAIN)
    with pytest.raises(ValueError, match=rf"Mine.token_loss: metrics\['{name}'\] is of every update"):
        learner.update(drawn(learner.policy), AlgorithmSpec(name="mine.py:Mine", text=text), 1.0)
