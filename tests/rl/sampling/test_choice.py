"""The compiled choice of tokens: of the distribution, by the uniform number, and nothing that has no probability."""

import shutil
from collections.abc import Iterator

import pytest
import torch

from rl.sampling import choice
from rl.sampling.choice import Choice
from rl.sampling.decoding import chosen

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler of C: install gcc or clang")


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(choice, "ROWS", 2)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 1), (5, 7), (64, 923), (3, 151_936), (7, 4096)])
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
def test_a_token_is_where_its_uniform_number_falls(rows: int, vocabulary: int, spread: float) -> None:
    torch.manual_seed(rows)
    scores, uniform = spread * torch.randn(rows, vocabulary), torch.rand(rows)
    given = scores.clone()
    tokens, logprobs = Choice()(scores, uniform)
    assert scores.equal(given)
    exact = scores.double().log_softmax(1)
    sums = exact.exp().cumsum(1).gather(1, tokens[:, None])[:, 0]
    own = exact.gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs.double(), own, atol=2e-6, rtol=1e-6)
    assert (sums > uniform - 1e-6).all()
    assert (sums - own.exp() < uniform + 1e-6).all()


def test_it_draws_what_tensors_draw() -> None:
    torch.manual_seed(0)
    scores, uniform = 3 * torch.randn(512, 923), torch.rand(512)
    tokens, logprobs = chosen(scores.clone(), False, uniform)
    compiled_tokens, compiled_logprobs = chosen(scores.clone(), False, uniform, Choice())
    same = tokens == compiled_tokens
    assert same.sum() >= 511  # a number may fall on the edge between two
    torch.testing.assert_close(compiled_logprobs[same], logprobs[same], atol=3e-6, rtol=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_what_has_no_probability_is_never_drawn(uniform: float) -> None:
    scores = torch.full((4, 700), -torch.inf)
    scores[0, 300], scores[1, [0, 699]], scores[2, :699], scores[3, 5:] = 1.0, 2.0, 0.0, -200.0
    scores[3, 400] = 0.0
    tokens, logprobs = Choice()(scores, torch.full((4,), uniform))
    high = uniform > 0
    assert tokens.tolist() == [300, 699 if high else 0, 698 if high else 0, 400]
    assert logprobs.tolist() == pytest.approx([0, -0.693147, -6.549651, 0], abs=1e-5)


def test_rows_that_are_no_numbers_have_no_log_prob_and_harm_no_other() -> None:
    scores = torch.randn(3, 50)
    scores[1, 20] = torch.nan
    tokens, logprobs = Choice()(scores, torch.full((3,), 0.5))
    assert logprobs.isnan().tolist() == [False, True, False]
    assert ((tokens >= 0) & (tokens < 50)).all()


def test_it_is_in_float32_whatever_the_type_by_default() -> None:
    scores, uniform = torch.randn(4096, 50), torch.rand(4096)
    expected = Choice()(scores, uniform)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = Choice()(scores, uniform)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(one.equal(other) for one, other in zip(found, expected, strict=True))


def test_one_that_chooses_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Choice.__call__
    monkeypatch.setattr(Choice, "__call__", lambda self, scores, uniform: call(self, scores, 1 - uniform))
    with pytest.raises(ValueError, match="other tokens"):
        Choice()
    monkeypatch.setattr(Choice, "__call__", lambda self, scores, uniform: call(self, scores / 2, uniform))
    with pytest.raises(ValueError, match="other log-probs"):
        Choice()
