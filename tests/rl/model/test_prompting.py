"""What a model is asked with: the bare form, chat templates, templates of the user's."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import processors

from rl.loading.policy import load_policy
from rl.model.policy import Policy
from rl.model.prompting import prompt_tokens
from rl.model.tiny import build_tokenizer
from rl.records import Instructions
from rl.verifiers.built_in.arithmetic import INSTRUCTIONS
from tests.rl.saved import CPU, TEMPLATE, Build, saved


def test_the_bare_form_is_the_problem_and_a_line_break(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    assert policy.tokenizer.decode(policy.prompt_tokens("add 3 and 4.")) == "add 3 and 4.\n"


def test_the_chat_template_is_used_where_the_model_has_one(tmp_path: Path, build_small: Build) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    policy = load_policy(saved(tmp_path, build_small("llama"), tokenizer), CPU)
    lines = policy.tokenizer.decode(policy.prompt_tokens("add 3 and 4.", INSTRUCTIONS)).split("\n")
    said = [
        f"[system] {INSTRUCTIONS.system}",
        f"[user] {INSTRUCTIONS.examples[0][0]}",
        f"[assistant] {INSTRUCTIONS.examples[0][1]}",
        "[user] add 3 and 4.",
    ]
    assert lines == [line.lower() for line in [*said, "[assistant] "]]


def test_a_template_without_a_system_role_gets_its_words_in_the_first_turn(tmp_path: Path, build_small: Build) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE
    )
    policy = load_policy(saved(tmp_path, build_small("llama"), tokenizer), CPU)
    said = policy.tokenizer.decode(policy.prompt_tokens("add 3 and 4.", INSTRUCTIONS))
    assert said.startswith(
        (
            f"[user] {INSTRUCTIONS.system}\n\n{INSTRUCTIONS.examples[0][0]}\n[assistant] {INSTRUCTIONS.examples[0][1]}"
        ).lower()
    )
    assert said.endswith("[user] add 3 and 4.\n[assistant] ")


def test_a_template_that_passes_over_the_system_role_gets_its_words_in_the_first_turn() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{% if message['role'] != 'system' %}[{{ message['role'] }}] "
        "{{ message['content'] | trim }}\n{% endif %}{% endfor %}"
    )
    for told in (INSTRUCTIONS, Instructions(f" {INSTRUCTIONS.system}\n", INSTRUCTIONS.examples, required=True)):
        said = tokenizer.decode(prompt_tokens(tokenizer, "add 3 and 4.", told))
        assert said.startswith(f"[user] {INSTRUCTIONS.system}".lower())
        assert f"\n\n{INSTRUCTIONS.examples[0][0]}\n[assistant] ".lower() in said
        assert said.endswith("[user] add 3 and 4.\n")


def test_a_template_that_passes_over_the_first_turn_too_is_refused() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ messages[-1]['content'] }}\n"
    with pytest.raises(ValueError, match=r"problems.system: the model's chat template leaves it out"):
        prompt_tokens(tokenizer, "add 3 and 4.", INSTRUCTIONS)
    assert tokenizer.decode(prompt_tokens(tokenizer, "add 3 and 4.")) == "add 3 and 4."


PARTS = "{% for part in message['content'] %}{% if part['type'] is defined %}{{ part['text'] }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        "{% for message in messages %}{% if message['role'] == 'human' %}{{ message['content'] }}{% endif %}"
        "{% endfor %}assistant:",
        "{% for message in messages %}{{ message['role'] }}: {% if message['role'] == 'system' %}"
        "{{ message['content'] }}{% else %}" + PARTS + "{% endif %}\n{% endfor %}assistant:",  # as of images and texts
    ],
)
@pytest.mark.parametrize("told", [None, INSTRUCTIONS])
def test_a_template_that_leaves_the_problem_out_is_refused(template: str, told: Instructions | None) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=r"chat template leaves out 'add 3 and 4.'; write problems.template"):
        prompt_tokens(tokenizer, "add 3 and 4.", told)


def test_a_template_of_one_turn_gets_a_problem_with_its_system_prompt_in_that() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}\nassistant:"
    assert tokenizer.decode(prompt_tokens(tokenizer, "add 3 and 4.", Instructions("be brief."))) == (
        "be brief.\n\nadd 3 and 4.\nassistant:"
    )
    with pytest.raises(ValueError, match=r"chat template leaves out 'add 3 and 4.'"):  # it would see an example alone
        prompt_tokens(tokenizer, "add 3 and 4.", INSTRUCTIONS)


def test_without_instructions_a_chat_model_gets_the_problem_alone(tmp_path: Path, build_small: Build) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    policy = load_policy(saved(tmp_path, build_small("llama"), tokenizer), CPU)
    assert policy.tokenizer.decode(policy.prompt_tokens("add 3 and 4.")) == "[user] add 3 and 4.\n[assistant] "


def test_the_beginning_token_comes_first_where_the_tokenizer_puts_it(
    tmp_path: Path, build_small: Build, make_policy: Callable[..., Policy]
) -> None:
    bare = make_policy().prompt_tokens("add 3 and 4.")
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<begin>"})
    begin = tokenizer.bos_token_id
    model = build_small("llama", vocab_size=len(tokenizer))
    unused = load_policy(saved(tmp_path, model, tokenizer), CPU)
    assert unused.prompt_tokens("add 3 and 4.") == bare  # it has one and does not put it anywhere
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<begin> $A <end>", special_tokens=[("<begin>", begin), ("<end>", tokenizer.eos_token_id)]
    )
    policy = load_policy(saved(tmp_path, model, tokenizer), CPU)
    assert policy.prompt_tokens("add 3 and 4.") == [begin, *bare]
    tokenizer.chat_template = "<begin>" + TEMPLATE
    chat = load_policy(saved(tmp_path, model, tokenizer), CPU).prompt_tokens("add 3 and 4.")
    assert chat[0] == begin
    assert begin not in chat[1:]
    assert tokenizer.eos_token_id not in chat


def test_a_template_of_the_users_is_the_whole_prompt(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    told = Instructions("be {prompt}.", template="{system} q: {prompt}\na:")
    tokens = policy.prompt_tokens("add {system} and 4.", told)
    assert policy.tokenizer.decode(tokens) == "be {prompt}. q: add {system} and 4.\na:"


def test_a_system_prompt_that_cannot_be_said_is_refused(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    assert policy.prompt_tokens("1", INSTRUCTIONS) == policy.prompt_tokens("1")  # a verifier's own may go
    with pytest.raises(ValueError, match=r"problems.system: the model has no chat template") as caught:
        policy.prompt_tokens("1", Instructions("be brief.", required=True))
    assert "\n" not in str(caught.value)
