"""The next turn of a conversation: what is observed, as tokens behind those that the policy drew.

What it drew is never tokenised again: a text has many tokenisations, and the log-probs that travel with a completion
are of one. The chat template is asked only for what stands behind an assistant's turn, from the token that ends it to
where the next one begins. All of that is others' (`Rollouts.trained` is False), and so is the token that ends a turn
which was cut at the limit of tokens, as the policy has not drawn it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from rl.environments.calls import FORMS, Syntax, action_of
from rl.environments.turn import Action, ToolCall
from rl.model.controls import MARK, Controls
from rl.model.prompting import turn_end

_SAID, _SEEN = "Forty-two.", "Sixty-six."  # what is looked for in what a template makes of them
_ASKED = {"role": "user", "content": "What is 6 times 7?"}
_ANSWERED = {"role": "assistant", "content": _SAID}
_CALL: Mapping[str, Any] = {"name": "multiply", "arguments": {"factors": [6, 7]}}


class TurnsError(ValueError):
    """A model that cannot hold a conversation of several turns; one line that says why."""


@dataclass(frozen=True)
class Turns:
    """How a model's conversations go on. Without a chat template an observation is a question as the first one was:
    its text and a line break."""

    tokenizer: PreTrainedTokenizerBase
    ends: Collection[int]  # tokens that end a turn of the policy's: `Policy.ends`
    end: int  # the one of them that is put behind a turn that was cut
    role: str  # whose turn an observation is; empty without a chat template
    syntax: Syntax  # of calls

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, ends: Collection[int], *, tools: bool) -> Self:
        """Those of a model. Where there are ``tools`` and the chat template writes calls of them, observations are a
        tool's turns, if it knows these; else the user's.

        Raises:
            TurnsError: nothing can be put behind a turn of its own.
        """
        if tokenizer.chat_template is None:
            if tokenizer.eos_token_id is None:
                raise TurnsError("the model has neither a chat template nor a token that ends a text")
            return cls(tokenizer, ends, int(tokenizer.eos_token_id), "", "plain")
        end = turn_end(tokenizer)
        if end is None:
            raise TurnsError("the model's chat template puts no token of its own behind a turn, to go on from")
        syntax: Syntax = _syntax(tokenizer, end) if tools else "plain"
        why = ""
        for role in ("user",) if syntax == "plain" else ("tool", "user"):
            found = cls(tokenizer, ends, end, role, syntax)
            if not (why := found._refusal()):
                return found
        raise TurnsError(f"the model's chat template {why}")

    def observed(self, texts: Sequence[str], *, closed: bool) -> list[int]:
        """Token ids of one observation or several, and of what begins the policy's next turn, to be put behind a turn
        that it has ``closed``, by one of `ends`, or has not. They decode to the texts as the template writes them, but
        for MARK, which is left out, and what UTF-8 does not hold.

        Raises:
            TurnsError: the tokenizer makes control tokens of their very characters.
        """
        if len(texts) not in self._harmless:
            self._harmless[len(texts)] = self._controls.among(self._behind(["."] * len(texts)))
        for said in self._controls.ways(texts):
            tokens = self._behind(said)
            if self._controls.among(tokens) == self._harmless[len(texts)]:
                return tokens if closed else [self.end, *tokens]
        raise TurnsError("an observation cannot be written without control tokens")

    def action(self, tokens: Sequence[int], tools: Mapping[str, Sequence[str]]) -> Action:
        """What the policy asks for in a turn of these tokens: see `action_of`."""
        drawn = list(tokens)
        if drawn and drawn[-1] in self.ends:
            del drawn[-1]
        text = str(self.tokenizer.decode(drawn, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        return action_of(text, self.syntax, tools) if tools else text

    def _behind(self, texts: Sequence[str]) -> list[int]:
        """The tokens behind the one that ends the turn before. It is tokenised with them, because some tokenizers put a
        blank before what begins a text."""
        end = str(self.tokenizer.convert_ids_to_tokens(self.end))
        parts = [end + part for part in self._text(texts).split(MARK) if part]
        found = self.tokenizer(parts, add_special_tokens=False)["input_ids"]
        if any(tokens[0] != self.end for tokens in found):
            raise TurnsError(f"the tokenizer does not read {end!r}, which ends a turn, as one token")
        return [token for tokens in found for token in tokens[1:]]

    def _text(self, texts: Sequence[str], before: int = 1) -> str:
        """What stands behind the ``before``-th of the policy's turns, and the token that ends it."""
        if not self.role:
            return "\n".join(texts) + "\n"
        said = texts if self.role == "tool" else ["\n".join(texts)]
        seen = [{"role": self.role, "content": text} for text in said]
        turns = [*([_ASKED, _ANSWERED] * before), *seen]
        text = self.tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=False, enable_thinking=False
        )
        _, _, behind = str(text).partition(_SAID) if before == 1 else str(text).rpartition(_SAID)
        _, ends, rest = behind.partition(str(self.tokenizer.convert_ids_to_tokens(self.end)))
        if not ends:
            raise TurnsError("the model's chat template does not end a turn that another follows")
        return rest

    def _refusal(self) -> str:
        """Why the template cannot say observations of this role, in a few words; empty if it can."""
        try:
            text = self._text([_SEEN])
            if text.count(_SEEN) != 1:
                return "leaves out what is observed, or says it twice"
            if self._text([_SEEN], before=2) != text:
                return "writes a turn otherwise where others were before it"
            if len(self._text([_SEEN, _SEEN]).split(_SEEN)) != 3:
                return "leaves out what is observed, or says it twice"
        except (TemplateError, ValueError) as error:
            return f"knows no turn behind the policy's: {' '.join(str(error).split())}"
        return ""

    @cached_property
    def _controls(self) -> Controls:
        return Controls(self.tokenizer)

    @cached_property
    def _harmless(self) -> dict[int, list[int]]:
        """The control tokens around so many observations."""
        return {}


def _syntax(tokenizer: PreTrainedTokenizerBase, end: int) -> Syntax:
    """The form in which the template writes a call, `plain` where it writes none. Raises TurnsError where that is
    another one, which the policy would be told to use."""
    call = {"type": "function", "function": _CALL}
    turns: list[dict[str, Any]] = [_ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}]
    try:
        text = str(tokenizer.apply_chat_template(turns, tokenize=False))
    except (TemplateError, ValueError):
        return "plain"
    written = text.partition(_ASKED["content"])[2]
    if _CALL["name"] not in written:
        return "plain"
    in_json = written[written.find("{") :].partition(str(tokenizer.convert_ids_to_tokens(end)))[0]
    said: tuple[tuple[Syntax, str], ...] = (("hermes", written), ("llama3_json", in_json))
    for syntax, written in said:
        if action_of(written, syntax, {}) == (ToolCall(**_CALL),):
            return syntax
    forms = ", ".join(FORMS[syntax] for syntax, _ in said)
    raise TurnsError(f"the model's chat template writes calls in a form that is not read; those that are: {forms}")
