"""Which port each service gets."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from infra import disk
from infra.hosts import LOOPBACK, free_port
from infra.services import prefect_server
from infra.services.part import TITLES
from infra.storage.typed import DamagedError, read_typed

_PORTS = dict[str, Annotated[int, Field(ge=0, le=65535)]]  # by service
PORTS = {"prefect": prefect_server.PORT, "mlflow": 5000, "scheduler": 8786, "dashboard": 8787}  # where they are free


class Ports:
    """Which port each service gets: the given one, else that of the last time, else the usual one; a free one where
    either of the latter is taken."""

    def __init__(self, home: Path, host: str, given: Mapping[str, int], say: Callable[[str], None]) -> None:
        self.chosen: dict[str, int] = {}
        self._file = home / "services" / "ports.json"
        self._host, self._given, self._say = host, given, say
        self._last: dict[str, int] = {}
        of: dict[int, str] = {}
        for name, port in given.items():
            if port and of.setdefault(port, name) != name:
                raise ValueError(f"--port-{name} {port}: is the port of {of[port]} already; choose another")
        try:
            self._last = read_typed(self._file, _PORTS, "the usual ports are taken, where they are free") or {}
        except DamagedError as error:  # it is written anew
            say(f"warning: {error}")

    def wanted(self, name: str) -> int:
        """The port to try first; 0, any, where it is another service's of ours."""
        if name in self._given:
            return self._given[name]
        usual = self._last.get(name, PORTS[name])
        others = {**self.chosen, **self._given}
        return 0 if usual in [port for other, port in others.items() if other != name] else usual

    def is_given(self, name: str) -> bool:
        """Whether the port is given: the service gets that one or none."""
        return bool(self._given.get(name))

    def choose(self, name: str) -> int:
        """A free port for the service. Raises `ValueError` where the given one is taken."""
        wanted = self.wanted(name)
        port = free_port(wanted, self._host_of(name))
        if wanted not in (port, 0):
            if self.is_given(name):
                raise taken(name, wanted)
            self._say(f"port {wanted} is in use: the {TITLES.get(name, 'Dask page')} listens on {port}")
        self.chosen[name] = port
        self.keep()
        return port

    def moved(self, name: str) -> bool:
        """Choose another port for a dead service if a stranger listens at its own; whether that was so."""
        port = self.chosen[name]
        if free_port(port, self._host_of(name)) == port:
            return False
        if self.is_given(name):
            raise taken(name, port)
        self._last[name] = port
        self.choose(name)
        return True

    def keep(self) -> None:
        """Write the chosen ports down for the next `rlvf up`: other machines may know them."""
        disk.write_file(self._file, json.dumps({**self._last, **self.chosen}).encode())

    def _host_of(self, name: str) -> str:
        return LOOPBACK if name == "dashboard" else self._host


def taken(name: str, port: int) -> ValueError:
    """The error for a given port at which another program listens."""
    return ValueError(
        f"--port-{name} {port}: another program listens there; choose another, or leave it out to take a free one"
    )
