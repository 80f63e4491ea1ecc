"""The prompt as a model is given it: through its chat template, through the user's own, or bare."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from rl.environments.calls import explained
from rl.model.controls import MARK, Controls
from rl.records import Instructions

_PLACE = re.compile(r"\{(prompt|system)\}")
_ANSWER = "Forty-two."  # an assistant's turn; its words are looked for in what a template makes of it


Tool = Mapping[str, Any]  # a JSON schema: {"type": "function", "function": {"name": …, "parameters": …}}


def prompt_tokens(
    tokenizer: PreTrainedTokenizerBase,
    problem: str,
    instructions: Instructions | None = None,
    tools: Sequence[Tool] = (),
    opening: str = "",
) -> list[int]:
    """Token ids of the prompt: through the user's template, else through the chat template, the system prompt in the
    first turn where that has no such role; else the problem and a line break. The chat template shows the ``tools``, or
    the system prompt does where that leaves them out; without one they are not shown. Behind the problem stands an
    ``opening`` of an environment's, which makes no control token.

    Raises:
        ValueError: the instructions are required, and the model has no chat template; or it has one that leaves out
            what it is given.
    """
    if opening:
        return _opened(tokenizer, problem, instructions, tools, opening)
    if instructions is not None and instructions.template is not None:
        words = {"prompt": problem, "system": instructions.system}
        return _with_beginning(tokenizer, _PLACE.sub(lambda place: words[place[1]], instructions.template))
    if tokenizer.chat_template is None:
        if instructions is not None and instructions.required:
            raise ValueError(
                "problems.system: the model has no chat template to say it through; write problems.template, with "
                "{system} and {prompt} in it, or leave problems.system out"
            )
        return _with_beginning(tokenizer, problem + "\n")
    return _ids(tokenizer, _rendered(tokenizer, problem, instructions, tools))


def _opened(
    tokenizer: PreTrainedTokenizerBase,
    problem: str,
    instructions: Instructions | None,
    tools: Sequence[Tool],
    opening: str,
) -> list[int]:
    controls = Controls(tokenizer)
    harmless = controls.among(prompt_tokens(tokenizer, f"{problem}.", instructions, tools))
    for (said,) in controls.ways([opening]):
        tokens = prompt_tokens(tokenizer, problem + said, instructions, tools)
        if controls.among(tokens) == harmless:
            return tokens
    raise ValueError("what the environment begins with cannot be written without control tokens")


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """In the parts between MARKs."""
    parts = [part for part in text.split(MARK) if part]
    return [token for tokens in tokenizer(parts, add_special_tokens=False)["input_ids"] for token in tokens]


def turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that the chat template puts behind an assistant's turn: at the end of a conversation, or else before
    the user speaks again. None without a template, or if it puts words there, which may be part of an answer.

    A base model often has the template of its chat model and `eos_token` and generation settings of its own, which name
    the end of a text.
    """
    if tokenizer.chat_template is None:
        return None
    asked = {"role": "user", "content": "What is 6 times 7?"}
    turns = [asked, {"role": "assistant", "content": _ANSWER}]
    for conversation in (turns, [*turns, asked]):
        try:
            text = str(tokenizer.apply_chat_template(conversation, tokenize=False))
        except (TemplateError, ValueError):  # it knows no such conversation, or several templates and none for it
            continue
        _, said, behind = text.rpartition(_ANSWER)
        first = next(iter(tokenizer(behind.strip(), add_special_tokens=False)["input_ids"]), None) if said else None
        if first in tokenizer.added_tokens_decoder or first in tokenizer.all_special_ids:
            return int(first)
    return None


def _with_beginning(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    bare = _ids(tokenizer, text)
    begin = tokenizer.bos_token_id  # which a chat template writes itself
    # not what else the tokenizer adds: one that ends its texts would end the prompt
    if begin is None or tokenizer(text)["input_ids"][:1] != [begin] or bare[:1] == [begin]:
        return bare
    return [begin, *bare]


def _rendered(
    tokenizer: PreTrainedTokenizerBase, problem: str, instructions: Instructions | None, tools: Sequence[Tool]
) -> str:
    system, examples = (instructions.system, instructions.examples) if instructions else ("", ())
    shown = bool(tools) and _shows(tokenizer, tools)
    if tools and not shown:
        system = "\n\n".join(filter(None, (system, explained(tools))))
    turns = []
    for question, answer in examples:
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    turns.append({"role": "user", "content": problem})
    render = partial(
        tokenizer.apply_chat_template,
        add_generation_prompt=True,
        tokenize=False,
        enable_thinking=False,
        tools=[dict(tool) for tool in tools] if shown else None,
    )
    said = [problem, system, *(words for pair in examples for words in pair)]
    if system:
        with suppress(TemplateError):  # some templates know no system role
            text = str(render([{"role": "system", "content": system}, *turns]))
            if _lost(text, said) is None:  # others pass over it
                return text
        turns[0]["content"] = f"{system}\n\n{turns[0]['content']}"
    text = str(render(turns))
    if (lost := _lost(text, said)) is not None:
        what = f"the model's chat template leaves out {lost[:60]!r}"
        if lost == system:
            what = "problems.system: the model's chat template leaves it out, in the first turn, too"
        raise ValueError(f"{what}; write problems.template, with {{system}} and {{prompt}} in it")
    return text


def _shows(tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool]) -> bool:
    """Whether the chat template names all tools."""
    turns = [{"role": "user", "content": ""}]
    try:
        text = str(tokenizer.apply_chat_template(turns, tools=[dict(tool) for tool in tools], tokenize=False))
    except (TemplateError, ValueError):
        return False
    return all(tool["function"]["name"] in text for tool in tools)


def _lost(text: str, said: list[str]) -> str | None:
    """The first of these that is not in the text, blanks aside, which templates trim."""
    bare = "".join(text.split())
    return next((words for words in said if "".join(words.split()) not in bare), None)
