"""The passwords of a home."""

from pathlib import Path

from infra.services.passwords import FILE, kept_password, password


def test_each_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert kept_password(home, "prefect") is None
    first = password(home, "prefect")
    assert len(first) >= 24
    assert password(home, "mlflow") != first
    assert password(home, "prefect") == first == kept_password(home, "prefect")
    assert (home / FILE).stat().st_mode & 0o777 == 0o600
