"""The run that a command reads, and where it writes what it makes of it."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.commands.unused_up import say_unused_up
from flows.config import TrainConfig
from flows.start.runs import Run, known_run
from flows.start.trust import refuse_odd_files, trusted
from infra.disk import FORBIDDEN, FULL
from infra.home import runs_uri
from infra.storage.usable import named_storage_errors

UNWRITABLE = FULL | FORBIDDEN | {errno.ENOENT, errno.ENOTDIR}


def named_run(name: str, known: Callable[[str, str], str] = known_run) -> str:
    """The URI of the run of that name or URI, as it is `known` by that and the URI of the home's runs; refuses one
    whose files are not plain ones.

    Raises:
        NotARun: there is none; the message has the names that are most like it.
    """
    if "://" not in name:
        say_unused_up()
    with named_storage_errors(name if "://" in name else runs_uri()):
        uri = known(name, runs_uri())
    refuse_odd_files(uri)
    return uri


def public_base(uri: str, config: TrainConfig, trust: bool) -> str | None:
    """The model that the run started from, where every machine loads that itself: of a run from elsewhere once it is
    trusted. Nothing else that the run names is used."""
    if config.sync.base != "public":
        return None
    asked = TrainConfig(policy=config.policy)
    trusted(Run(uri, asked, resumed=True, saved=asked), trust, ask=True)
    return config.policy.model


@contextmanager
def written_to(out: Path, option: str = "--out") -> Iterator[None]:
    """Raises ValueError with the option's name where its folder is full, or nothing can be written there."""
    try:
        yield
    except OSError as error:
        named = Path(str(error.filename)).absolute()
        if error.errno not in UNWRITABLE or not named.is_relative_to(out.absolute().parent):
            raise
        raise ValueError(f"{option} {out}: cannot be written ({error.strerror}); name a place elsewhere") from error
