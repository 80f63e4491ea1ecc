"""Defaults of the options that depend on what is trained: resolved once, when a run begins, and saved with it."""

import math
import sys
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from flows.config import EvalConfig, TrainConfig
from flows.finetune_config import FinetuneConfig
from infra.dispatch.lease_config import LeaseConfig
from infra.interrupts import put_off
from rl.algorithms import Algorithm
from rl.audit import AuditConfig
from rl.config import MOST_TOKENS, OURS, TINY, TINY_PARAMETERS, PolicyConfig, SamplingConfig
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.optimizer_config import OptimizerConfig
from rl.records import Problem
from rl.verifiers.spec import judged_by
from rl.verifiers.table import declared
from tasks.calls.inflight import InflightConfig
from tasks.sets.named_set import open_environment

F = TypeVar("F", bound=FinetuneConfig)

# Adam's steps are as large as the learning rate whatever the gradient; a large model is near a good solution already
RATES = ((20e6, 3e-4), (100e6, 3e-5), (500e6, 5e-6))  # below so many parameters
RATE = 1e-6  # of larger ones: what reinforcement learning of 0.5B-8B models is published with
# of demonstrations and reward models: the likelihood's gradient has less noise than a reward's (2e-5 for 7B models in
# Tunstall et al., arXiv 2310.16944, section 4; Wang et al., arXiv 2306.04751, section 4); DPO takes those above
EXAMPLE_RATES, EXAMPLE_RATE = ((20e6, 1e-3), (100e6, 1e-4), (500e6, 3e-5)), 1e-5
# of adapters: the best rate is ten times that of all parameters, whatever the rank (Schulman et al., LoRA Without
# Regret, 2025), and models of 7B to 13B were tuned at 2e-4 (Dettmers et al., arXiv 2305.14314, table 9)
ADAPTERS, MOST = 10, 2e-4
# above staleness 1 it is divided by the square root of that: updates that follow one another before anybody samples by
# the first of them overshoot (SGD's by the staleness itself: Zhang et al., arXiv 1511.05950; ours:
# docs/benchmarks/learning.md)
OLD = 4  # versions, from which on batches need a correction: docs/asynchrony.md
MEASURED = (
    "at staleness 8 the tiny policy ended at 0.971 to 0.974 with cispo and divergence, of three seeds, and at 0.623 to "
    "0.925 with cispo alone (docs/benchmarks/learning.md, Old batches)"
)
SMALL = 20e6  # parameters: a model of fewer does not think step by step
SHORT = 40  # tokens, of a small model's answer
TURN, SHORT_TURN = 256, 24  # of a turn with what is observed behind it: enough for a few words and a call


def with_defaults(config: TrainConfig) -> tuple[TrainConfig, list[str]]:
    """The configuration with every such option set, and a line for each that was chosen, with the reason.

    Raises ValueError where the penalty of long completions would begin before their first token."""
    optimizer, lines = _with_rate(config.optimizer, config.policy, RATES, RATE, config.staleness)
    config = config.model_copy(update={"optimizer": optimizer})
    sampling, why = _sampling(config, config.policy.model)
    if (overlong := config.algorithm.overlong or 0) > sampling.limit:
        raise ValueError(f"algorithm.overlong {overlong}: give at most sampling.max_tokens, {sampling.limit}")
    return config.model_copy(update={"sampling": sampling}), [*lines, *why, *_idle(config)]


def _idle(config: TrainConfig) -> list[str]:
    """A line for the local workers of a role that no call is placed on."""
    roles = {"critics": ("CRITIC", ("value", "train_critic")), "references": ("REFERENCE", ("reference",))}
    return [
        f"cluster.{option} {count}: no call is placed there, so that it does nothing; give "
        + " ".join(f"--placement.{call} {role}" for call in calls)
        for option, (role, calls) in roles.items()
        if (count := getattr(config.cluster, option)) and config.idle(role)
    ]


def without_effect(config: TrainConfig) -> list[str]:
    """A line for each option that is set and does nothing beside the others."""
    lines = []
    if not config.staleness and config.lease.seconds not in (0, LeaseConfig().seconds):
        lines.append(f"lease.seconds {config.lease.seconds:g}: at staleness 0 a lease has batch.lease prompts")
    versions = config.inflight.kv_versions
    if versions != InflightConfig().kv_versions and not config.inflight.in_use(config.staleness, config.policy.engine):
        why = "a server (policy.engine) is given weights between leases"
        if config.inflight.weights is False:
            why = "with inflight.weights false weights are swapped between leases"
        elif not config.staleness:
            why = "at staleness 0 all tokens of a batch are of one version"
        lines.append(f"inflight.kv_versions {versions}: {why}")
    if not config.audit.share and config.audit.bound != AuditConfig().bound:
        lines.append(f"audit.bound {config.audit.bound:g}: with audit.share 0 nothing is audited")
    return [f"{line}, so that it does nothing" for line in lines]


def notes_on_audits(config: TrainConfig, generators: int) -> list[str]:
    """A line where more or less audits than by default are asked for, and so many ``generators`` make none."""
    if (share := config.audit.share) in (0, AuditConfig().share):
        return []
    if config.policy.engine != OURS:
        return [f"audit.share {share:g}: a server (policy.engine) does not score for audits, so that there are none"]
    return [] if generators > 1 else [f"audit.share {share:g}: no generator is audited until another one is there"]


def with_rate(config: F) -> tuple[F, list[str]]:
    """The same of training on examples, of its learning rate."""
    table, least = (RATES, RATE) if config.method == "dpo" else (EXAMPLE_RATES, EXAMPLE_RATE)
    optimizer, lines = _with_rate(config.optimizer, config.policy, table, least)
    return config.model_copy(update={"optimizer": optimizer}), lines


def _with_rate(
    optimizer: OptimizerConfig,
    policy: PolicyConfig,
    rates: Sequence[tuple[float, float]],
    least: float,
    staleness: int = 0,
) -> tuple[OptimizerConfig, list[str]]:
    if optimizer.lr is not None:
        return optimizer, []
    size = parameters(policy.model)
    rate = next((rate for below, rate in rates if size < below), least)
    reason = f"for a policy of {_short(size)} parameters"
    if policy.lora.rank:
        rate = max(rate, min(float(f"{ADAPTERS * rate:g}"), MOST))
        reason = f"for adapters on a policy of {_short(size)} parameters"
    if staleness > 1:
        rate = float(f"{rate / math.sqrt(staleness):.2g}")
        reason += f", and staleness {staleness}"
    return optimizer.model_copy(update={"lr": rate}), [f"optimizer.lr {rate:g}: {reason}"]


def notes_on_tiny(model: str, problems: Sequence[Problem]) -> list[str]:
    """A line where the tiny policy is to learn what it has no words for."""
    wordy = [problem for problem in problems if not any(letter.isdigit() for letter in problem.prompt)]
    if model != TINY or 2 * len(wordy) <= len(problems):
        return []
    return [
        "the tiny policy has seen nothing but arithmetic, and most of these prompts have no number: take one that "
        "knows words, such as --policy Qwen/Qwen3-0.6B"
    ]


def notes_on_adapters(rank: int, trained: int, parameters: int) -> list[str]:
    """A line where adapters are trained: how many of a policy's parameters, theirs included, that is."""
    return [f"lora rank {rank}: {_short(trained)} of {_short(parameters)} parameters are trained"] if rank else []


def notes_on_staleness(staleness: int, algorithm: AlgorithmSpec, *, resumed: bool = False) -> list[str]:
    """A warning where batches may be so old that docs/asynchrony.md recommends a correction and there is none; and
    where they are more than one version old and the loss clips around the policy that sampled them, whatever the
    correction: at 4 versions that halved the pass rate of AReaL (arXiv 2505.24298). A ``resumed`` run is advised of
    what it may change."""
    loss, mask = algorithm.algorithm, "--algorithm.correction divergence"
    advice = f"--algorithm cispo {mask}"
    instead = f"{advice}, or --algorithm.proximal recomputed, which clips around the policy of the step"
    instead = f"less staleness, or begin a new run with {instead}" if resumed else instead
    measured = f"; {MEASURED}" if staleness >= OLD else ""
    if staleness > 1 and algorithm.proximal == "behaviour" and loss.trust_region:
        return [
            f"warning: with staleness {staleness} {algorithm.name} clips around a policy of up to {staleness} versions "
            f"ago, and may learn nothing of tokens that have moved since; give {instead}; a mask alone leaves out more "
            f"tokens{measured}"
        ]
    corrects = algorithm.correction.kind != "none" or type(loss).token_mask is not Algorithm.token_mask
    if staleness < OLD or corrects:
        return []
    return [
        f"warning: with staleness {staleness} batches are up to {staleness} versions old, and algorithm.correction is "
        f"none; from {OLD} on docs/asynchrony.md recommends {mask if resumed else advice}{measured}"
    ]


def notes_on_rate(config: TrainConfig, saved: TrainConfig) -> list[str]:
    """A line where a run goes on with a larger staleness and the learning rate of before, which is too large for it as
    `with_defaults` sees it."""
    rate, was, now = config.optimizer.lr, max(1, saved.staleness), max(1, config.staleness)
    if rate is None or rate != saved.optimizer.lr or now <= was:
        return []
    return [
        f"warning: optimizer.lr {rate:g} is that of staleness {saved.staleness}, and batches of up to {now} versions "
        f"ago need smaller steps; give --optimizer.lr {rate * math.sqrt(was / now):.2g}"
    ]


def with_eval_defaults(config: EvalConfig, trained: TrainConfig | None) -> tuple[EvalConfig, list[str]]:
    """The same for an evaluation; of a run, whose configuration is given, as it was trained."""
    if config.sampling.max_tokens is None and trained is not None:
        limit = trained.sampling.max_tokens
        config = config.model_copy(update={"sampling": config.sampling.model_copy(update={"max_tokens": limit})})
    model = config.policy.model if trained is None else trained.policy.model
    sampling, lines = _sampling(config, model)
    return config.model_copy(update={"sampling": sampling}), lines


def _sampling(config: TrainConfig | EvalConfig, model: str) -> tuple[SamplingConfig, list[str]]:
    sampling = config.sampling
    if sampling.max_tokens is not None:
        return sampling, []
    size = parameters(model)
    small = f"a policy of {_short(size)} parameters" if size < SMALL else ""
    environment = open_environment(config.environment)
    choices = [
        _of_one_turn(judged_by(each, config.verifier), small)
        for each in config.sets
        if environment is None or each.judged
    ]
    if environment is not None:
        turns, of = environment.limits.turns, f"{small} in the environment" if small else "the environment"
        tokens = min(turns * (SHORT_TURN if small else TURN), MOST_TOKENS)
        choices.append((tokens, f"for {turns} turns of {of} {environment.class_name}"))
    tokens, reason = max(choices)
    if (model != TINY or environment is not None) and 2 * tokens > (limit := _reach(model)):
        tokens, reason = limit // 2, f"half of the {limit} that the model can attend to"
    return sampling.model_copy(update={"max_tokens": tokens}), [f"sampling.max_tokens {tokens}: {reason}"]


def _of_one_turn(verifier: str, small: str) -> tuple[int, str]:
    """Tokens of a completion that this verifier judges, and why; ``small`` says that the policy is, if it is."""
    if small:
        return SHORT, f"for {small}"
    of = declared(verifier)
    return of.tokens, f"for the verifier {verifier}" if of.built_in else "for a verifier of yours"


@cache
def parameters(model: str) -> int:
    """How many parameters a model has, by its configuration alone."""
    if model == TINY:
        return TINY_PARAMETERS  # torch is not imported for that
    with put_off():
        from rl.model.skeleton import skeleton

    return int(skeleton(model).num_parameters())


def _reach(model: str) -> int:
    """How many tokens of a sequence a model from elsewhere can attend to, by its configuration alone."""
    with put_off():
        import torch

        from rl.model.policy import Policy
        from rl.model.skeleton import META, skeleton
        from rl.model.tiny import build_tokenizer

    found = Policy(skeleton(model), build_tokenizer(), META, torch.float32).reach
    return sys.maxsize if found is None else found[0]


def _short(size: int) -> str:
    return f"{size / 1e9:.1f}B" if size >= 1e9 else f"{size / 1e6:.1f}M" if size >= 1e5 else f"{size:,}"
