import socket
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from rl.model.tiny import WORDS, build_model, build_tokenizer
from rl.problems.made.grammar import stream
from tests.streams import drawing

draw = drawing(stream)

TOKENIZER = build_tokenizer()
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126) | st.just("\n"), max_size=80)
PHRASES = st.lists(st.sampled_from([*WORDS, "17", "305", " ", ", ", ".", "(", ") * ", "\n"]), max_size=30).map("".join)


def ids(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def test_it_has_about_0_8_million_parameters_and_a_head_tied_to_the_embeddings() -> None:
    model = build_model(len(TOKENIZER), end=2, pad=0, seed=0)
    assert 0.7e6 < sum(parameter.numel() for parameter in model.parameters()) < 0.95e6
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_seed_alone_determines_the_weights_and_the_global_stream_is_left_alone() -> None:
    state = torch.get_rng_state()
    one = build_model(100, 2, 0, seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(7)
    again, other = build_model(100, 2, 0, seed=3).state_dict(), build_model(100, 2, 0, seed=4).state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


@given(PRINTABLE | PHRASES)
def test_decoding_gives_back_the_text_in_lower_case(text: str) -> None:
    assert TOKENIZER.decode(ids(text)) == text.lower()


@given(PHRASES)
def test_known_text_has_no_unknown_token(text: str) -> None:
    assert TOKENIZER.unk_token_id not in ids(text)


@given(st.integers(0, 10**6), st.sampled_from(["add {}", "({} + 1)", "{}.", "1 * {}", "the\n{}", "-{}", "then {} and"]))
def test_a_number_is_the_same_tokens_wherever_it_stands(number: int, around: str) -> None:
    digits = ids(str(number))
    assert len(digits) == len(str(number))
    assert [token for token in ids(around.format(number)) if token in set(ids("0123456789"))] == (
        [*ids("1"), *digits] if "1 *" in around else [*digits, *ids("1")] if "+ 1" in around else digits
    )


@pytest.mark.parametrize("word", WORDS)
def test_a_known_word_is_one_token(word: str) -> None:
    assert [len(ids(text)) for text in (word, f" {word}", f"{word} ", f" {word} ")] == [1, 1, 1, 1]


def test_the_grammars_prompts_and_targets_have_no_unknown_token() -> None:
    for problem in draw(0, 0, 1000):
        assert TOKENIZER.unk_token_id not in ids(f"{problem.prompt}\n{problem.target}")


def test_what_is_not_printable_ascii_becomes_unknown() -> None:
    assert TOKENIZER.unk_token_id in ids("3 × 4")
    assert TOKENIZER.unk_token_id in ids("é")


def test_saved_and_loaded_by_the_auto_classes_it_gives_the_same_ids_and_logits_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, seed=0).eval()
    tokenizer.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(tmp_path)
    text = "Take the sum of 3, 40 and 5, then multiply by xyzzy.\n(3 + 40 + 5) * 2 # <end>"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert loaded.decode(ids(text)) == tokenizer.decode(ids(text)) == text.lower()
    assert (loaded.eos_token, loaded.pad_token, loaded.unk_token) == ("<end>", "<pad>", "<unk>")
    tokens = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(tokens).logits, model(tokens).logits)
