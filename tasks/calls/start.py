"""The model that a run starts from: loaded, and checked before the run exists."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.cluster.resident import drop, resident, resident_now
from infra.storage import store
from infra.storage.fence import Fence
from rl.config import TINY, PolicyConfig
from rl.environments.interface import Interface
from rl.learning.optimizer_config import OptimizerConfig
from rl.records import Learned, Problem

if TYPE_CHECKING:
    from rl.model.policy import Policy


@dataclass(frozen=True)
class RunStart:
    """Where a trainer stands when a run starts."""

    step: int
    learned: Learned | None  # by the update that made this version
    figures: dict[str, float]  # of the batch that it learned from
    warnings: tuple[str, ...]
    vocabulary: int  # rows of the embedding: token ids are below
    parameters: int
    trained: int  # of these
    dtype: str  # of the arithmetic


def check_policy(
    policy: PolicyConfig,
    optimizer: OptimizerConfig,
    problems: Sequence[Problem],
    max_tokens: int,
    fence: Fence | None = None,
    interface: Interface | None = None,
) -> list[str]:
    """Load a model before a run exists, and check that it can be trained on such problems; returns notes for a person.
    The session of that ``fence`` takes the loaded model, and no later one: its files may be others by then. The
    ``interface`` is that of the environment that is acted on.

    Raises:
        UnknownModelError: it cannot be loaded, or not driven.
        ValueError: a prompt and ``max_tokens`` exceed its context, its chat template cannot take a prompt, or the
            optimizer needs a package that is not here.
        TurnsError: nothing can be put behind a turn of the model's.
    """
    optimizer.check_installed()
    if policy.model == TINY:
        check_configuration(policy, problems, max_tokens, interface)
        return []
    drop("learner")  # of an earlier run: two models would not fit
    drop("critic")
    drop("checked")
    source = policy.model
    loaded = resident("checked", (source, policy, fence), lambda: load_start(source, policy))
    try:
        _check_room(loaded, problems, max_tokens, interface)
    except BaseException:
        drop("checked")
        raise
    notes = []
    if loaded.unnamed_end is not None:
        notes.append(
            f"a completion of {source} ends at {loaded.unnamed_end} too: its chat template ends a turn with it, though "
            "its tokenizer and generation_config.json do not name it"
        )
    given = [of.template for problem in problems if (of := problem.instructions) and of.template is not None]
    if "strftime_now" in str(loaded.tokenizer.chat_template) and len(given) < len(problems):
        notes.append(
            f"the chat template of {source} puts today's date into each prompt, so that figures of two days are of "
            "other prompts; problems.template can be without"
        )
    unsaid = [of.system for problem in problems if (of := problem.instructions) and of.system and of.template is None]
    if loaded.tokenizer.chat_template is None and unsaid:
        notes.append(
            f"{source} has no chat template, so that it is given problems without {unsaid[0]!r}; problems.template "
            "says what a base model is given"
        )
    return notes


def check_configuration(
    policy: PolicyConfig, problems: Sequence[Problem], max_tokens: int, interface: Interface | None = None
) -> None:
    """Refuse what a model's configuration and tokenizer alone tell; its weights, and how they compute, are not asked.

    Raises:
        UnknownModelError: transformers cannot make it, or it is of a type that is not driven.
        ValueError, TurnsError: as `check_policy`, or ``policy.lora.targets`` names no layer of it.
    """
    import torch

    from rl.loading.parity import refuse_by_type
    from rl.model.lora import adapted_layers
    from rl.model.policy import Policy
    from rl.model.skeleton import META, skeleton
    from rl.model.tiny import build_tokenizer
    from rl.model.tokenizer import read_tokenizer

    model = skeleton(policy.model)
    refuse_by_type(model, policy.model)
    if policy.lora.rank:
        adapted_layers(model, policy.lora.targets)
    tokenizer = build_tokenizer() if policy.model == TINY else read_tokenizer(policy.model)
    _check_room(Policy(model, tokenizer, META, torch.float32), problems, max_tokens, interface)


def take_checked(source: str, policy: PolicyConfig, fence: Fence) -> "Policy":
    """The model with its float32 weights, as it was loaded to be checked, or loaded now; it is the caller's alone."""
    from rl.model.policy import Policy

    checked = resident_now("checked", (source, policy, fence))
    drop("checked")
    return checked if isinstance(checked, Policy) else load_start(source, policy)


def _check_room(policy: "Policy", problems: Sequence[Problem], max_tokens: int, interface: Interface | None) -> None:
    tools = () if interface is None else interface.tools
    if interface is not None:
        from rl.model.turns import Turns

        Turns.of(policy.tokenizer, policy.ends, tools=bool(tools))
    tokens = {
        problem.source: len(policy.prompt_tokens(problem.prompt, problem.instructions, tools if problem.played else ()))
        for problem in problems
    }
    longest = max(tokens, key=tokens.__getitem__)
    try:
        policy.check_room(tokens[longest], max_tokens)
    except ValueError as error:
        raise ValueError(f"{error} (problem {longest}): shorten it, leave it out, or give fewer max_tokens") from error


@contextmanager
def weights_of(source: str) -> Iterator[str]:
    """What transformers can load: the hub id or folder itself, or a copy of what is stored elsewhere."""
    if "://" not in source:
        yield source
        return
    with store.read_folder(source) as folder:
        yield str(folder.path)


def load_start(source: str, policy: PolicyConfig) -> "Policy":
    """The model that a run starts from, with float32 weights. Raises UnknownModelError and NoRoomError."""
    from rl.loading.policy import load_policy

    with weights_of(source) as path:
        return load_policy(path, policy, master=True)
