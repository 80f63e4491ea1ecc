"""Faults that pass."""

from pathlib import Path

from flows.benches.faults import away


def test_what_was_written_in_place_of_a_share_is_hidden_when_it_is_back(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "mine").mkdir(parents=True)
    with away(runs):
        assert not runs.exists()
        (runs / "other").mkdir(parents=True)
    assert [each.name for each in runs.iterdir()] == ["mine"]
    (hidden,) = tmp_path.glob("runs-hidden-*")
    assert (hidden / "other").is_dir()
    with away(runs):
        pass
    assert (runs / "mine").is_dir()
