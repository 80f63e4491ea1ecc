"""A warm-up that is kept somewhere else."""

from pathlib import Path

from infra.storage import store
from infra.weights.version import published_version
from infra.weights.whole import keep_whole
from rl.config import PolicyConfig
from rl.policy import load_policy, save_policy
from rl.tiny import build_model, build_tokenizer
from tasks.warm_up import bring, is_kept


def test_a_warm_up_of_the_home_is_brought_to_a_storage_elsewhere(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    made = tmp_path / "made"
    build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, 0).save_pretrained(made)
    tokenizer.save_pretrained(made)
    save_policy(load_policy(str(made), PolicyConfig(device="cpu")), tmp_path / "policy")
    home, elsewhere = str(tmp_path / "home" / "warmup" / "a"), "memory://brought/warmup/a"
    version = keep_whole(home, tmp_path / "policy")
    assert bring(home, elsewhere)
    assert published_version(elsewhere).digest == version.digest
    with store.read_folder(elsewhere) as there, store.read_folder(home) as here:
        assert (there.path / "model.safetensors").read_bytes() == (here.path / "model.safetensors").read_bytes()


def test_what_is_not_kept_or_damaged_is_not_brought(tmp_path: Path) -> None:
    assert not bring(str(tmp_path / "nothing"), "memory://not-brought")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "model.safetensors").write_bytes(b"weights")
    stored = tmp_path / "stored"
    store.write_folder(str(stored), tmp_path / "source")
    (stored / "model.safetensors").write_bytes(b"other")
    assert not bring(str(stored), "memory://not-brought")
    assert not is_kept("memory://not-brought")
