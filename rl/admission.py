"""Checks of what a generator, a verifier or a scorer returns, before it enters a batch: a machine with broken memory,
another version of a library, or somebody else's program returns anything, and one such lease spoils an update for
everybody.

Legend: P problems, G completions per problem, S prompt tokens, T completion tokens.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeGuard

import numpy as np
from numpy.typing import NDArray

from rl.audit import AuditScores
from rl.environments.episode import Outcome
from rl.environments.turn import is_action
from rl.judging import Judgement
from rl.records import Maker, Problem, Rollouts, arrays
from rl.slices import SoFar
from rl.verifiers.parts import MAX_PARTS, MAX_REWARD, is_part_name

TOLERANCE = 1e-3  # nats above 0 that rounding may make of the log-prob of a certain token
MOST = 1e9  # seconds that a lease may have taken, and what an outcome may be worth
LONGEST = 10_000  # characters of a verdict's reason or message
Args = ParamSpec("Args")


@dataclass(frozen=True)
class Asked:
    """A request to one generator."""

    problems: tuple[Problem, ...]  # [P]
    samples: int  # G
    max_tokens: int  # T at most
    versions: range  # policy versions that a token may be sampled with
    vocabulary: int | None = None  # token ids are below; None where they are not used
    so_far: SoFar | None = None  # completions that it goes on with
    unfinished: bool = False  # whether some may be handed in before they are over
    turns: bool = False  # whether completions are of turns, between which something is observed, where it is played

    @property
    def observed(self) -> bool:
        """Whether completions begin with tokens of observations."""
        return self.so_far is not None and any(self.so_far.observed)


def checking(refused: Callable[Concatenate[object, Args], str]) -> Callable[Concatenate[object, Args], str]:
    """Such a check, of what may be anything: what it cannot even read is refused."""

    @wraps(refused)
    def read(returned: object, /, *args: Args.args, **kwargs: Args.kwargs) -> str:
        try:
            return refused(returned, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever such an object raises
            return f"it cannot be read ({type(error).__name__})"

    return read


@checking
def refusal(returned: object, asked: Asked) -> str:
    """Why this is not trained on, in a few words; empty if it is what was asked for."""
    if not isinstance(returned, Rollouts):
        return f"it is {type(returned).__name__}, and not rollouts"
    return _shapes(returned, asked) or _lengths(returned, asked) or _values(returned, asked)


def telling(refused: Callable[[str], object], why: str) -> str:
    """``why`` a result is refused, of which ``refused`` is told; empty where it is taken."""
    if why:
        refused(why)
    return why


@checking
def refused_judgement(returned: object, problems: int, samples: int) -> str:
    """Why these are no verdicts on so many completions of so many problems, in a few words; empty if they are. A
    verifier that failed gives a verdict too: only a machine that returns something else is refused."""
    if not isinstance(returned, Judgement):
        return f"it is {type(returned).__name__}, and not a judgement"
    if why := _unlike_rewards("rewards", returned.rewards, (problems, samples)):
        return why
    for name, texts in (("reasons", returned.reasons), ("messages", returned.messages)):
        if not _is_texts(texts, problems, samples):
            return f"its {name} are not {problems} times {samples}"
        if (most := max((len(text) for row in texts for text in row), default=0)) > LONGEST:
            return f"one of its {name} has {most} characters, more than {LONGEST}"
    if not isinstance(returned.parts, Mapping) or not all(map(is_part_name, returned.parts)):
        return "its parts have no names that metrics can have"
    if (count := len(returned.parts)) > problems * samples * MAX_PARTS:
        return f"it has {count} parts, more than {MAX_PARTS} a completion"
    for name, part in returned.parts.items():
        if why := _unlike_rewards(f"the parts {name}", part, (problems, samples)):
            return why
    return "" if isinstance(returned.failed, bool) else "it does not say whether it failed"


@checking
def refused_outcomes(returned: object, count: int) -> str:
    """Why these are not the outcomes of so many actions, in a few words; empty if they are. An environment that failed
    has an outcome too."""
    if not isinstance(returned, list) or len(returned) != count:
        return f"it is {type(returned).__name__}, and not {count} outcomes"
    for each in returned:
        if not isinstance(each, Outcome) or not isinstance(each.observations, tuple):
            return f"an outcome is {type(each).__name__}"
        if not all(isinstance(text, str) for text in (*each.observations, each.reason, each.error)):
            return "an outcome's texts are none"
        if not isinstance(each.over, bool) or type(each.refused) is not int:
            return "an outcome does not say whether it is over"
        if not all(isinstance(n, float | int) and abs(n) < MOST for n in (each.reward, each.seconds)):
            return f"an outcome has reward {each.reward:g} after {each.seconds:g} seconds"
    return ""


@checking
def refused_logprobs(returned: object, of: Rollouts) -> str:
    """Why these are no [P, G, T] log-probs of the tokens of these rollouts, in a few words; empty if they are."""
    if why := refused_scores(returned, of):
        return why
    assert isinstance(returned, np.ndarray)
    return f"a log-prob is {returned.max():g}" if returned.max() > TOLERANCE else ""


@checking
def refused_audit(returned: object, of: Rollouts) -> str:
    """Why this is no `AuditScores` of these rollouts, in a few words; empty if it is."""
    if not isinstance(returned, AuditScores) or not names_type(returned.dtype):
        return f"it is {type(returned).__name__}, and not scores with their type"
    return refused_logprobs(returned.logprobs, of)


def names_type(name: object) -> bool:
    """Whether this may be the name of a type of numbers, and so a part of a metric's."""
    return isinstance(name, str) and re.fullmatch(r"\w{0,20}", name, re.ASCII) is not None


@checking
def refused_scores(returned: object, of: Rollouts) -> str:
    """Why these are no [P, G, T] numbers, one for each token of these rollouts that the policy wrote and 0 elsewhere,
    in a few words; empty if they are."""
    if not _is_array(returned, "f", 3) or returned.dtype != np.float32 or returned.shape != of.tokens.shape:
        return f"scores are {_shape(returned)}, not float32 {list(of.tokens.shape)}"
    if not np.isfinite(returned).all():
        return f"a score is {returned[~np.isfinite(returned)][0]:g}"
    apart = returned[~of.trained]
    return f"a score is {apart[apart != 0][0]:g} where the policy has written no token" if apart.any() else ""


def _unlike_rewards(name: str, given: Any, shape: tuple[int, int]) -> str:
    """Why these are no rewards or parts of rewards; NaN is a missing verdict."""
    if not _is_array(given, "f", 2) or given.shape != shape:
        return f"{name} are {_shape(given)}, not {list(shape)}"
    odd = given[np.abs(given) > MAX_REWARD]
    return f"of {name} one is {odd[0]:g}, beyond {MAX_REWARD:g}" if odd.size else ""


def _shapes(of: Rollouts, asked: Asked) -> str:
    if not isinstance(of.problems, tuple) or of.problems != asked.problems:
        return "its problems are not those asked for"
    P, G = len(asked.problems), asked.samples  # noqa: N806
    if not _is_array(of.tokens, "iu", 3) or of.tokens.shape[:2] != (P, G):
        return f"tokens are {_shape(of.tokens)}, not integers [{P}, {G}, T]"
    T = of.tokens.shape[2]  # noqa: N806
    if not 1 <= T <= asked.max_tokens:
        return f"completions have {T} tokens, not 1 to {asked.max_tokens}"
    for name, (axes, kinds) in arrays(Rollouts).items():
        array, shape = getattr(of, name), tuple({"P": P, "G": G, "T": T}[axis] for axis in axes)
        if not _is_array(array, kinds, len(shape)) or array.shape != shape:
            return f"{name} are {_shape(array)}, not {list(shape)}"
    if (
        not isinstance(of.prompts, tuple)
        or len(of.prompts) != P
        or not all(_is_array(p, "iu", 1) and p.size for p in of.prompts)
    ):
        return f"its prompts are not token ids of {P} problems"
    if not _is_texts(of.texts, P, G):
        return f"its texts are not {P} times {G}"
    if why := _unlike_actions(of, asked):
        return why
    if (
        not isinstance(of.makers, tuple)
        or len(of.makers) not in (0, P)
        or not all(isinstance(maker, Maker) and names_type(maker.dtype) for maker in of.makers)
    ):
        return f"its makers are not those of {P} problems"
    if not isinstance(of.seconds, float | int) or not 0 <= of.seconds < MOST:
        return f"it took {of.seconds} seconds"
    return ""


def _unlike_actions(of: Rollouts, asked: Asked) -> str:
    if not asked.turns:
        return "" if isinstance(of.actions, tuple) and not of.actions else "it has turns"
    if not _is_texts(of.actions, *of.ended.shape):
        return f"its actions are not {of.ended.shape[0]} times {of.ended.shape[1]}"
    for problem, row, ended in zip(asked.problems, of.actions, of.ended.tolist(), strict=True):
        if any(row) and not problem.played:
            return "a completion of one turn asks for something"
        for text, end in zip(row, ended, strict=True):
            if bool(text) != end and problem.played:
                return "a turn that ended asks for nothing" if end else "a turn that has not ended asks for something"
            if text and not is_action(text):
                return "a turn asks for what is no action"
    return ""


def _lengths(of: Rollouts, asked: Asked) -> str:
    T = of.tokens.shape[2]  # noqa: N806
    so_far = asked.so_far
    least = 0 if asked.unfinished or so_far is not None else 1
    if (bad := _outside(of.lengths, least, T)) is not None:
        return f"a completion has {bad} of {T} tokens"
    new, before = of.lengths.astype(np.int64), np.zeros(of.lengths.shape, np.int64)
    if so_far is not None:
        if not all(map(np.array_equal, of.prompts, so_far.prompts)):
            return "its prompts are others than before"
        over = np.reshape([tokens is None for tokens in so_far.tokens], new.shape)
        before.flat[:] = [0 if tokens is None else len(tokens) for tokens in so_far.tokens]
        if (new[over] > 0).any() or of.ended[over].any():
            return "it goes on with a completion that was over"
        before[over] = asked.max_tokens
    if (most := (before + new).max()) > asked.max_tokens:
        return f"a completion has {most} tokens with those before, not {asked.max_tokens} at most"
    if not (of.inside if asked.observed else of.trained & of.inside).any():
        return "it has drawn no token"
    if (of.ended & (new == 0)).any():
        return "a completion has ended without a token"
    if not asked.unfinished and (~of.ended & (before + new < asked.max_tokens)).any():
        return f"a completion is not over, and has not {asked.max_tokens} tokens"
    return ""


def _values(of: Rollouts, asked: Asked) -> str:
    if (of.trained & ~of.inside).any():
        return "a token past a completion's end is marked as the policy's"
    apart = of.inside & ~of.trained
    if not asked.observed and apart.any():
        return "a token is not marked as the policy's, which has written all"
    if asked.observed and (why := _unlike_observations(of, asked)):
        return why
    tokens = np.concatenate([of.tokens[of.inside], *of.prompts])
    highest = np.iinfo(np.int32).max if asked.vocabulary is None else asked.vocabulary - 1
    if (bad := _outside(tokens, 0, highest)) is not None:
        return f"token id {bad} is not in the vocabulary, 0 to {highest}"
    with np.errstate(over="ignore"):
        logprobs, observed = of.logprobs[of.trained].astype(np.float32), of.logprobs[apart]  # as they are learned from
    if not np.isfinite(logprobs).all() or logprobs.max(initial=-np.inf) > TOLERANCE:
        odd = logprobs[~np.isfinite(logprobs) | (logprobs > TOLERANCE)][0]
        return f"a log-prob is {odd:g}"
    if observed.any():
        return f"an observation has a log-prob, {observed[observed != 0][0]:g}"
    oldest, newest = asked.versions.start, asked.versions.stop - 1
    versions = of.versions[of.trained]
    if versions.size and (bad := _outside(versions, oldest, newest)) is not None:
        return f"a token was sampled with v{bad}, not with v{oldest} to v{newest}"
    so_far = np.maximum.accumulate(np.where(of.trained, of.versions, oldest), axis=2)
    older = (of.versions < so_far) & of.trained
    return "a token was sampled with an older version than the one before it" if older.any() else ""


def _unlike_observations(of: Rollouts, asked: Asked) -> str:
    """What was observed comes first, where something was, and the policy has written all that is behind it."""
    assert asked.so_far is not None
    given = np.reshape([bool(texts) for texts in asked.so_far.observed], of.lengths.shape)
    apart = of.inside & ~of.trained
    if (apart.any(axis=2) != given).any():
        return "observations are not where they were given"
    return "an observation follows a token of the policy's" if (apart[..., 1:] & of.trained[..., :-1]).any() else ""


def _outside(given: Any, lowest: int, highest: int) -> int | None:
    """An element of an array that is out of bounds, None where there is none."""
    least, most = given.min(), given.max()
    return int(least) if least < lowest else int(most) if most > highest else None


def _is_array(given: Any, kinds: str, dimensions: int) -> TypeGuard[NDArray[Any]]:
    """Whether this is an array of one of these kinds of numbers (`dtype.kind`)."""
    return isinstance(given, np.ndarray) and given.dtype.kind in kinds and given.ndim == dimensions


def _shape(given: Any) -> str:
    return f"{given.dtype} {list(given.shape)}" if isinstance(given, np.ndarray) else type(given).__name__


def _is_texts(given: Any, rows: int, columns: int) -> bool:
    return (
        isinstance(given, tuple)
        and len(given) == rows
        and all(
            isinstance(row, tuple) and len(row) == columns and all(isinstance(text, str) for text in row)
            for row in given
        )
    )
