"""Control tokens of a tokenizer, which a text that somebody else wrote must not make.

Such a text may hold anything, a control token's very characters too. Where more control tokens come out than around a
harmless one, it is tokenised in parts, so that none is whole in any.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedTokenizerBase

MARK = "\ue000"  # of private use: where a text is tokenised in parts


@dataclass(frozen=True)
class Controls:
    """Those of a tokenizer."""

    tokenizer: PreTrainedTokenizerBase

    def among(self, tokens: Sequence[int]) -> list[int]:
        """The control tokens among these."""
        return [token for token in tokens if token in self._tokens]

    def ways(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """The texts as they are, then with a MARK wherever a control token could begin, then with one behind each
        character. They are without MARK themselves, and without what UTF-8 does not hold."""
        said = [text.replace(MARK, "").encode("utf-8", "replace").decode("utf-8") for text in texts]
        yield said
        yield [text.translate(self._beginnings) for text in said]
        yield [MARK.join(text) for text in said]

    @cached_property
    def _tokens(self) -> dict[int, str]:
        """All that were added to the vocabulary, but for blanks and ordinary characters, of which some tokenizers add a
        few, and for that of characters which are not in it."""
        added = self.tokenizer.added_tokens_decoder.items()
        return {
            token: of.content
            for token, of in added
            if token != self.tokenizer.unk_token_id
            and (of.special or not (of.content.isspace() or len(of.content) == 1))
        }

    @cached_property
    def _beginnings(self) -> dict[int, str]:
        """A mark behind each character that a control token begins with."""
        return {ord(text[0]): text[0] + MARK for text in self._tokens.values() if text}
