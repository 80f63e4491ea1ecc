"""The prompt as a model is given it: through its chat template, through the user's own, or bare."""

import re
from functools import partial

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from rl.records import Briefing

_PLACE = re.compile(r"\{(prompt|system)\}")


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, problem: str, briefing: Briefing | None = None) -> list[int]:
    """Token ids of the prompt.

    With a template of the user's the text is that, its places filled; with a chat template the system line, the worked
    examples and the problem go through it; a model without one gets the problem and a line break. A chat template
    writes the beginning-of-sequence token itself; elsewhere it comes first if the tokenizer puts it there.

    Raises:
        ValueError: the briefing is required, and there is nothing to say it through.
    """
    if briefing is not None and briefing.template is not None:
        words = {"prompt": problem, "system": briefing.system}
        return _with_beginning(tokenizer, _PLACE.sub(lambda place: words[place[1]], briefing.template))
    if tokenizer.chat_template is None:
        if briefing is not None and briefing.required:
            raise ValueError(
                "problems.system: the model has no chat template to say it through; write problems.template, with "
                "{system} and {prompt} in it, or leave problems.system out"
            )
        return _with_beginning(tokenizer, problem + "\n")
    return list(tokenizer(_rendered(tokenizer, problem, briefing), add_special_tokens=False)["input_ids"])


def _with_beginning(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    bare = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    begin = tokenizer.bos_token_id
    # not what else the tokenizer adds: one that ends its texts would end the prompt
    if begin is None or tokenizer(text)["input_ids"][:1] != [begin] or bare[:1] == [begin]:
        return bare
    return [begin, *bare]


def _rendered(tokenizer: PreTrainedTokenizerBase, problem: str, briefing: Briefing | None) -> str:
    system, examples = (briefing.system, briefing.examples) if briefing else ("", ())
    turns = []
    for question, answer in examples:
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    turns.append({"role": "user", "content": problem})
    render = partial(tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False, enable_thinking=False)
    try:
        return str(render([{"role": "system", "content": system}, *turns] if system else turns))
    except TemplateError:  # some templates know no system role
        if not system:
            raise
        first = f"{system}\n\n{turns[0]['content']}"
        return str(render([{"role": "user", "content": first}, *turns[1:]]))
