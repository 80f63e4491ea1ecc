"""Where rlvf keeps its things."""

import os
import stat
from pathlib import Path

NAME = ".rlvf"


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
    it with whatever rights their libraries give them. A folder that is not this user's, or holds other things and
    nothing of ours, is left as it is."""
    home.mkdir(parents=True, exist_ok=True)
    found = home.stat()
    if found.st_uid != os.getuid() or found.st_mode & stat.S_ISVTX:
        return
    ours = ("secrets.json", "prefect", "runs", "logs", "certs")
    if not any(home.iterdir()) or any((home / name).exists() for name in ours):
        home.chmod(stat.S_IMODE(found.st_mode) & ~(stat.S_IRWXG | stat.S_IRWXO))


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
