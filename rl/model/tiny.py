"""The tiny policy: a Qwen3 of about 0.8M parameters and a tokenizer of words and digits, both built in code.

It stands in for a download: everything that works on it works unchanged on a model from a hub.
"""

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PAD, UNKNOWN, END = "<pad>", "<unk>", "<end>"

# English that arithmetic is talked about in, and at the end what environments are told, and answer. A word outside this
# list is spelled in letters.
WORDS = """
a add added adding after again all altogether amount an and another answer apples are as at away be become both bring
by calculate change combine combined compute count cut deduct decrease decreased difference differences divide divided
do double each eight equal equals evaluate every fifty figure find first five for four from get give given gives half
has have having how hundred i in increase increased into is it its join last leave left less lower lowered many me
minus more multiplied multiply next nine now number numbers obtain of off on one open other out outcome over pair
pairs plus previous product products quotient raise raised reduce reduced remain remove result resulting results same
second separately six start starting step subtract subtracted subtracting sum summed sums take taken tell ten than
that the their them then there these they third this those three time times to together total totals triple twenty
twice two up value values what whatever when which with work you your
error guess higher right wrong
""".split()


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Words, signs and single digits. Words and signs carry the spaces around them, digits never do: a number is the
    same tokens wherever it stands, which is what copying it into an expression needs. Decoding gives back the text
    (lower-cased) exactly; characters beyond printable ASCII and newline become ``<unk>``."""
    characters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    whole = [f"{before}{word}{after}" for word in WORDS for before in ("", " ") for after in ("", " ")]
    signs = [f"{before}{sign}{after}" for sign in characters for before in ("", " ") for after in ("", " ")]
    numbers = [*"0123456789"]
    ranked = list(dict.fromkeys([*"\n ", *(piece for piece in signs if not piece.strip().isdigit()), *numbers, *whole]))
    whole_or_number = {*whole, *numbers}
    # a unigram model takes the segmentation of the highest total score: one whole word beats any spelling of it
    pieces = [(PAD, 0.0), (UNKNOWN, -100.0), (END, 0.0)]
    pieces += [(piece, -1.0 if piece in whole_or_number else -10.0) for piece in ranked]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=1, byte_fallback=False))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[a-z]+ ?|[0-9]| ?[^a-z0-9 \n] ?|[ \n]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def build_model(vocabulary: int, end: int, pad: int, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 with freshly initialised weights, the same for the same seed."""
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
