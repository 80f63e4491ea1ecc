"""The services for people: a live table on a terminal, a line for each change in a pipe."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from infra.security.printable import printable
from infra.services.addresses import Addresses
from infra.services.links import page_links
from infra.services.part import Row

COLOURS = {"up": "green", "was there": "green", "registered": "green", "used": "green", "died": "red"}


class StackDisplay:
    """The services while `rlvf up` keeps them; a context manager."""

    def __init__(self, to_log: bool = False) -> None:
        self._console = Console(file=sys.stderr, soft_wrap=True)
        self._live = (
            Live(console=self._console, auto_refresh=False, transient=False)
            if self._console.is_terminal and not self._console.is_dumb_terminal and not to_log
            else None
        )
        self._said: dict[str, str] = {}
        self._shown: list[Row] = []
        self._was_ready = False

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(printable(text)), soft_wrap=True)

    def show(self, rows: list[Row], ready: bool, pages: Callable[[], list[str]] = list) -> None:
        """Show the services as they are now, and `pages`, the lines of their links, once everything has worked."""
        if self._live is not None:
            if rows != self._shown:
                self._live.update(_table(rows), refresh=True)
                self._shown = rows
        else:
            for row in rows:
                if self._said.get(row.name) != row.state:
                    self._said[row.name] = row.state
                    self.say(f"{row.name:<16}{row.state:<12}{row.address}")
        if ready and not self._was_ready:
            self._was_ready = True
            if self._live is not None:
                self.say("\n".join([*pages(), "everything is up; Ctrl-C stops it"]))


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("service", "state", "address"):
        table.add_column(title, overflow="fold", no_wrap=title != "address")
    for row in rows:
        table.add_row(
            row.name, Text(printable(row.state), COLOURS.get(row.state, "yellow")), Text(printable(row.address))
        )
    return table


def rows_of(known: Addresses, home: Path) -> list[str]:
    """The addresses as lines; those of this home's pages are links that open them."""
    links = page_links(home, known)
    shown = {
        "Prefect": links.get("prefect", (known.prefect or "").removesuffix("/api")),
        "MLflow": links.get("mlflow", known.mlflow),
        "scheduler": known.scheduler,
        "dashboard": links.get("dashboard", known.dashboard),
        "storage": known.storage,
    }
    return [f"{name:<12}{address}" for name, address in shown.items() if address]
