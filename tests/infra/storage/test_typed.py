"""Small files that a disk, a person or a stranger has changed are told in one line, or do no harm."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.services.addresses import UP, Addresses, Up, read_up, write_up
from infra.services.passwords import FILE, kept_password, password
from infra.services.ports import PORTS, Ports
from infra.services.supervisor import Found, Service
from infra.storage.typed import DamagedError, read_typed

DAMAGED = ["", "null", "[]", "[1]", '"x"', "1", '{"prefect": null, "pid": "x"}', '{"pid": [1], "prefect": [1]}', "{"]


@dataclass(frozen=True)
class Kept:
    count: int
    names: dict[str, float]


def test_what_is_there_is_read_and_what_is_not_is_none(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    assert read_typed(file, Kept, "remove it") is None
    file.write_text('{"count": 3, "names": {"a": 0.5}}')
    assert read_typed(f"file://{file}", Kept, "remove it") == Kept(3, {"a": 0.5})


@pytest.mark.parametrize("content", [*DAMAGED, '{"count": 1, "names": {"a": "\ud800"}}', "[" * 10**5])
def test_a_damaged_file_is_a_line_with_its_name_and_what_to_do(tmp_path: Path, content: str) -> None:
    file = tmp_path / "kept.json"
    file.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(DamagedError) as refused:
        read_typed(file, Kept, "remove it")
    line = str(refused.value)
    assert line.startswith(f"{file} is damaged (")
    assert line.endswith("); remove it")
    assert "\n" not in line


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_passwords_are_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    for ask in (kept_password, password):
        with pytest.raises(DamagedError, match=rf"{FILE} is damaged \(.+\); remove it, and new passwords are made$"):
            ask(tmp_path, "prefect")


@pytest.mark.parametrize("content", [*DAMAGED, '{"prefect": 10e400}', '{"prefect": 70000}'])
def test_damaged_ports_are_said_and_the_usual_ones_taken(tmp_path: Path, content: str) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "ports.json").write_text(content)
    said: list[str] = []
    ports = Ports(tmp_path, "127.0.0.1", {}, said.append)
    assert ports.wanted("prefect") == PORTS["prefect"]
    (line,) = said
    assert "services/ports.json is damaged (" in line
    assert "\n" not in line


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_account_of_a_service_is_none(tmp_path: Path, content: str) -> None:
    service = Service(tmp_path / "service", tmp_path / "log")
    service.folder.mkdir()
    (service.folder / "server.json").write_text(content)
    assert service.found() == Found()
    assert not service.is_orphan()


@pytest.mark.parametrize("content", [*DAMAGED, '{"pid": 1e400}', '{"pid": -1}'])
def test_a_damaged_account_of_rlvf_up_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / UP).write_text(content)
    assert read_up(tmp_path) is None
    up = Up(7, True, Addresses(prefect="http://127.0.0.1:4200/api", storage="s3://runs"), "here")
    write_up(tmp_path, up)
    assert read_up(tmp_path) == up
