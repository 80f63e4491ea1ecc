"""Where rlvf keeps its things."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.disk import FORBIDDEN

NAME = ".rlvf"
# of what rlvf puts into a home: the folders, MLflow's database, with the files that SQLite puts beside it, and what is
# private from its first moment on
OURS = ("cache", "clusters", "logs", "mlartifacts", "models", "prefect", "runs", "services", "trusted", "warmup")
DATABASE = "mlflow.db"
OTHERS = ("certs", ".certs.lock", "secrets.json", ".secrets.json.lock")


class ForeignHomeError(ValueError):
    """The home in the working directory is another user's; one line that names it."""


def rlvf_home() -> Path:
    """The folder of all state: `$RLVF_HOME`, or `.rlvf` of the working directory or, as git looks for its own, of the
    nearest directory above that has one of this user's; a new one is made in the working directory.

    Raises ForeignHomeError if the working directory has one that is another user's, ValueError if $RLVF_HOME can be no
    folder, or the home's path holds a `?`.
    """
    home = _found_home()
    if "?" in str(home):  # MLflow's and Prefect's databases have URLs, in which a path ends there
        raise ValueError(f"home {home}: databases cannot lie in a path with a ?; set RLVF_HOME to one without")
    return home


def _found_home() -> Path:
    if given := os.environ.get("RLVF_HOME"):
        home = Path(given).expanduser().absolute()
        there = next(path for path in (home, *home.parents) if os.path.lexists(path))
        if not there.is_dir():
            raise ValueError(f"RLVF_HOME = {given}: {there} is no folder; name one, or one to be made")
        return home
    here = Path.cwd()
    # another user's home could make this one run code: it holds addresses and verifiers
    if (here / NAME).is_dir() and not _is_own(here / NAME):
        raise ForeignHomeError(
            f"{here / NAME} belongs to another user, whose code it could run; set RLVF_HOME to a folder of yours"
        )
    above = (folder / NAME for folder in here.parents if _is_own(folder / NAME))
    return here / NAME if (here / NAME).is_dir() else next(above, here / NAME)


def in_home(path: Path) -> bool:
    """Whether it lies under the home, where nobody else writes; links are followed."""
    return rlvf_home().resolve() in path.resolve().parents


def home_line() -> str:
    """Where the home is, and why there, for people."""
    home = rlvf_home()
    if os.environ.get("RLVF_HOME"):
        return f"home {home} ($RLVF_HOME)"
    return f"home {home}" if home.parent == Path.cwd() else f"home {home} (the nearest above this directory)"


def private_home(home: Path) -> None:
    """Make the home, or make an existing one, a folder that only its owner opens: databases, logs and prompts lie in
    it with whatever rights their libraries give them. A folder that is not this user's, or holds other things, is left
    as it is: in it what is rlvf's is made, or made private, before anything lies there. Raises ValueError where that
    cannot be written."""
    with writing(home):
        _make_private(home)


@contextmanager
def writing(home: Path) -> Iterator[None]:
    """Makes a ValueError of a home that cannot be made or written: it is where this user or another has put it."""
    try:
        yield
    except OSError as error:
        if error.errno not in FORBIDDEN | {errno.ENOENT, errno.ENOTDIR}:
            raise
        raise ValueError(
            f"{error.filename} cannot be written ({error.strerror}); set RLVF_HOME to a folder that can, now {home}"
        ) from error


def _make_private(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    found = home.stat()
    mine, shared = found.st_uid == os.getuid(), found.st_mode & stat.S_ISVTX
    if not mine and not shared:
        if not os.access(home, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(home))
        return
    if mine and not shared and all(_is_ours(path.name) for path in home.iterdir()):
        _close(home)
        return
    for name in OURS:
        try:
            (home / name).mkdir(mode=0o700, exist_ok=True)
        except FileExistsError as error:
            raise ForeignHomeError(
                f"{home} is no home for rlvf: its {name!r} is a file; name another by RLVF_HOME"
            ) from error
    (home / DATABASE).touch(mode=0o600)
    for path in home.iterdir():
        if _is_ours(path.name):
            _close(path)


def _is_ours(name: str) -> bool:
    return name in (*OURS, *OTHERS) or name.startswith(DATABASE)


def _close(path: Path) -> None:
    try:
        found = path.lstat()  # what a link leads to is not in the home
    except FileNotFoundError:  # SQLite's journal goes when it is done
        return
    if found.st_uid == os.getuid() and not stat.S_ISLNK(found.st_mode):
        path.chmod(stat.S_IMODE(found.st_mode) & ~(stat.S_IRWXG | stat.S_IRWXO))


def rlvf_storage() -> str:
    """Where runs and models lie that are named without a place: the URI `$RLVF_STORAGE`, or the home."""
    given = os.environ.get("RLVF_STORAGE")
    if given and "://" not in given:
        return str(Path(given).expanduser().absolute())
    return (given or str(rlvf_home())).rstrip("/")


def runs_uri() -> str:
    """Where runs lie that are named without a place."""
    return f"{rlvf_storage()}/runs"


def _is_own(folder: Path) -> bool:
    try:
        return folder.is_dir() and folder.stat().st_uid == os.geteuid()
    except OSError:
        return False
