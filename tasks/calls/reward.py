"""A reward model's scores of completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from infra.security.secrets import masked
from infra.storage import store
from infra.storage.manifest import Manifest, StoreError
from rl.config import PolicyConfig
from rl.records import Problem, Rollouts
from rl.verifiers.parts import MAX_REWARD
from tasks.calls.held import held

if TYPE_CHECKING:
    from rl.learning.scoring import Scoring

WRITE_ANEW = "rlvf reward-model --resume JUDGE writes it anew, where that run is whole; else name another one"


class RewardModelChangedError(RuntimeError):
    """What lies where a reward model was opened is another one by now."""


class BrokenRewardModelError(RuntimeError):
    """A reward model whose scores are no rewards."""


class NoRoomForCompletionError(ValueError):
    """A prompt that takes all that a reward model attends to."""


@dataclass(frozen=True)
class RewardModel:
    """What determines the scores; the model is held resident by the worker that computes them."""

    uri: str  # of the stored folder
    digest: str  # of its files

    def score(
        self, problems: Sequence[Problem], texts: Sequence[Sequence[str]], ended: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """[2, P, G]: scores of the completions ``texts`` [P] of [G] behind the problems' prompts, without a verifier's
        instructions, as those that it was trained on, and 1 for those that it cannot attend to whole. One
        that did not end has no end token.

        Raises:
            UnknownModelError: what lies there is no reward model.
            RewardModelChangedError: it is another than that of ``digest``.
            BrokenRewardModelError: scores are not finite, or beyond what a reward may be.
            NoRoomForCompletionError: a prompt is as long as what it attends to.
        """
        from rl.learning.fitting import scores
        from rl.learning.objectives import BradleyTerry

        # each answer once: of two that are the same, rounded in other company, one would seem better
        asked = [
            (row, text, bool(end)) for row, of in enumerate(texts) for text, end in zip(of, ended[row], strict=True)
        ]
        places = {answer: place for place, answer in enumerate(dict.fromkeys(asked))}
        alone = [problems[row] for row, _, _ in places], [[text] for _, text, _ in places]
        with held(f"reward model {self.uri}", self, self._load, again=True) as at:
            shown, cut = self._shown(at, *alone, np.array([[end] for _, _, end in places]))
            found = scores(at.policy, at.accumulation, shown, BradleyTerry())[0].astype(np.float32)[:, 0]
        if not (np.abs(found) <= MAX_REWARD).all():
            what = f"beyond {MAX_REWARD:g}" if np.isfinite(found).all() else "not finite"
            raise BrokenRewardModelError(
                f"reward model {masked(self.uri)} gives scores that are {what}: its weights are broken, or its "
                "arithmetic overflows; name another one"
            )
        of_each = np.stack([found, cut[:, 0].astype(np.float32)])
        return of_each[:, [places[answer] for answer in asked]].reshape(2, *ended.shape)

    def check(self, problems: Sequence[Problem]) -> None:
        """Score an answer to the first of the problems, and raise as `score` would for any of their prompts."""
        ended = np.ones((len(problems), 1), np.bool_)
        with held(f"reward model {self.uri}", self, self._load, again=True) as at:
            self._shown(at, problems, [("1",)] * len(problems), ended)
        self.score(problems[:1], (("1",),), ended[:1])

    def _shown(
        self, at: "Scoring", problems: Sequence[Problem], texts: Sequence[Sequence[str]], ended: NDArray[np.bool_]
    ) -> "tuple[Rollouts, NDArray[np.bool_]]":
        from rl.learning.supervised import answered

        try:
            return answered(at.policy, problems, texts, ended)
        except ValueError as error:
            raise NoRoomForCompletionError(f"reward model {masked(self.uri)}: {error}") from error

    def _load(self) -> "Scoring":
        from rl.learning.scoring import Scoring
        from rl.loading.reward_model import load_reward_model

        try:
            with store.read_folder(self.uri) as folder:
                self._require_same(folder.manifest)
                policy = load_reward_model(str(folder.path), PolicyConfig())
            self._require_same(store.read_manifest(self.uri))  # its files may have been replaced while they were loaded
        except StoreError as error:
            error.remedy = WRITE_ANEW
            raise
        for parameter in policy.model.parameters():
            parameter.requires_grad_(False)
        return Scoring(policy)

    def _require_same(self, found: Manifest) -> None:
        if found.digest != self.digest:
            raise RewardModelChangedError(
                f"reward model {masked(self.uri)} is another one since this began, as after rlvf reward-model --resume "
                "JUDGE, which writes its folder anew: put the former one back, or go on with that of now by "
                "rlvf train --resume RUN; a copy of the folder stays as it is"
            )
