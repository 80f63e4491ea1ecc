from typing import Any

import pytest

from infra.security import secrets
from infra.security.secrets import MaskedError, hidden, masked, revealed, without_userinfo


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://mlflow:pa55@db/mlflow", "postgresql://***@db/mlflow"),
        ("postgresql+psycopg2://u:p@ss@db:5432/m", "postgresql+psycopg2://***@db:5432/m"),
        ("http://ghp_0123@host/x", "http://***@host/x"),
        ("failed: https://u:p@host/a and ftp://v:q@host/b", "failed: https://***@host/a and ftp://***@host/b"),
        ("s3://b/k?X-Amz-Signature=ab12&X-Amz-Date=1", "s3://b/k?X-Amz-Signature=***&X-Amz-Date=1"),
        ("https://h/p.csv?v=2&token=abc#top", "https://h/p.csv?v=2&token=***#top"),
        ("https://h/c?sv=1&sig=abc%3D", "https://h/c?sv=1&sig=***"),
        ("host=db user=me password=pa55 dbname=m", "host=db user=me password=*** dbname=m"),
        # nothing secret
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("tcp://127.0.0.1:8786", "tcp://127.0.0.1:8786"),
        ("s3://bucket/a@b/c", "s3://bucket/a@b/c"),
        ("max_tokens=12", "max_tokens=12"),
        ("mail me@host.org: 3 + 4 = 7", "mail me@host.org: 3 + 4 = 7"),
    ],
)
def test_what_is_secret_in_a_text_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


def test_a_tree_is_masked_by_its_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("SHORT_TOKEN", "abc")  # it would be found anywhere
    tree = {
        "storage": {"secret": "x", "api_key": "y", "key": "wJalrXUtnFEMI"},
        "max_tokens": 12,
        "tags": ("abc", "http://u:p@h"),
        "none": None,
    }
    assert masked(tree) == {
        "storage": {"secret": "***", "api_key": "***", "key": "***"},
        "max_tokens": 12,
        "tags": ("abc", "http://***@h"),
        "none": None,
    }
    assert tree["tags"] == ("abc", "http://u:p@h")


def test_what_was_hidden_is_found_again_here_and_elsewhere_only_with_help(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {"tracking": {"uri": "http://me:pa55word@host:5000"}, "paths": ["s3://b?token=t0", "plain"]}
    shown = hidden(tree)
    assert "pa55" not in str(shown)
    assert "t0" not in str(shown)
    assert revealed(shown) == tree
    monkeypatch.setattr(secrets, "_known", {})  # another process
    with pytest.raises(MaskedError, match=r"^tracking.uri: 'http://\*\*\*@host:5000' was saved without its secret"):
        revealed(shown)
    with pytest.raises(MaskedError, match=r"^paths.0: "):
        revealed({"paths": shown["paths"]})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tree["tracking"]["uri"])
    assert revealed({"tracking": shown["tracking"]}) == {"tracking": tree["tracking"]}


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("policy.model", "***"),
        ("tracking.uri", "***"),
        ("tracking.uri", "token=***"),
        ("tracking.uri", "https://***"),
        ("policy.model", "postgresql://***@db/rlvf"),
    ],
)
def test_what_others_wrote_fetches_no_secret_of_the_environment(
    setting: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("LOGIN", "token=t0t0t0")
    monkeypatch.setenv("HOOK", "https://wJalrXUtnFEMI")
    monkeypatch.setenv("DATABASE", "postgresql://me:pa55word@db/rlvf")
    hidden("wJalrXUtnFEMI")
    section, _, name = setting.partition(".")
    with pytest.raises(MaskedError, match=setting):
        revealed({section: {name: shown}})


WORDS: dict[str, Any] = {
    "problems": {"template": "End with pass=yes or no. {prompt}", "system": "Say token=7", "path": "s3://b?token=t0"},
    "mix": [{"system": "ask https://me@host"}, {"path": "s3://b?token=t0"}],
    "evals": [{"prompt": "host password=1"}],
    "sampling": {"stop": ["***", "wJalrXUtnFEMI"]},
}


def test_words_for_the_model_are_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    shown = hidden(WORDS)
    masked_path = "s3://b?token=***"
    assert shown == {
        **WORDS,
        "problems": {**WORDS["problems"], "path": masked_path},
        "mix": [WORDS["mix"][0], {"path": masked_path}],
    }
    assert revealed(shown) == WORDS
    monkeypatch.setattr(secrets, "_known", {})  # another process
    words = {**shown, "problems": {"template": WORDS["problems"]["template"]}, "mix": [shown["mix"][0]]}
    assert revealed(words) == words


def test_words_that_an_older_version_has_masked_are_not_taken_as_they_stand() -> None:
    with pytest.raises(MaskedError, match=r"^problems\.template: .* was saved by an older version .*; write it into"):
        revealed({"problems": {"template": "End with pass=*** or no. {prompt}"}})


def test_an_address_without_its_user() -> None:
    assert without_userinfo("http://u:p@host:1/x") == "http://host:1/x"
    assert without_userinfo("http://host:1/x") == "http://host:1/x"
