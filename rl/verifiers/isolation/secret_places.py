"""Where a machine keeps secrets: the homes of its user, what environment variables name instead, and where the same is
mounted a second time.

A home is closed as a whole, for what is not there yet would not be in a list of files.
"""

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from rl.verifiers.isolation import second_paths

# below a home, closed also where a folder around them is kept
NAMES = (
    *(".ssh", ".aws", ".config", ".netrc", ".kube", ".docker", ".gnupg", ".azure", ".git-credentials", ".pgpass"),
    *(".pypirc", ".npmrc", ".gitconfig", ".local/share/keyrings", ".prefect", ".rlvf"),
    *(".cache/huggingface/token", ".cache/huggingface/stored_tokens"),
)
# files and folders, several in one variable as in PATH
VARIABLES = (
    *("HF_HOME", "HF_TOKEN_PATH"),
    *("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "BOTO_CONFIG", "KUBECONFIG", "DOCKER_CONFIG"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "AZURE_CONFIG_DIR", "AZURE_FEDERATED_TOKEN_FILE"),
    *("NETRC", "GNUPGHOME", "GIT_CONFIG_GLOBAL", "PGPASSFILE", "PIP_CONFIG_FILE", "NPM_CONFIG_USERCONFIG"),
    *("KAGGLE_CONFIG_DIR", "PREFECT_HOME", "PREFECT_PROFILES_PATH", "RLVF_HOME"),
)
# some users have one of these for a home; a machine does not work without them
SYSTEM = frozenset(
    Path(path)
    for path in "/ /bin /boot /dev /etc /lib /lib32 /lib64 /libx32 /opt /proc /run /sbin /sys /usr /usr/bin /usr/lib "
    "/usr/local /usr/sbin /var /var/lib".split()
)


def secret_places(home: Path | None) -> list[str]:
    """What no verifier is to read, whether it exists or not: the homes, what lies in them, what the variables name,
    and rlvf's home. Of a home that is a folder of the system only what NAMES has."""
    homes = sorted({Path(path).absolute() for path in _homes()})
    found = [place for place in (*homes, *_named()) if place.resolve() not in SYSTEM]
    found += [own / name for own in homes for name in NAMES]
    found += [home.absolute()] if home is not None else []
    found += [path for path in second_paths.of(found) if path not in SYSTEM]
    return sorted(map(str, set(found)))


def _homes() -> Iterator[str]:
    if given := os.environ.get("HOME"):
        yield given
    try:
        yield pwd.getpwuid(os.geteuid()).pw_dir  # programs that were not told of another one use this
    except KeyError:
        return  # a user that the machine does not know


def _named() -> Iterator[Path]:
    for variable in VARIABLES:
        for path in os.environ.get(variable, "").split(os.pathsep):
            if path:
                place = _absolute(path)
                yield place
                if variable == "HF_TOKEN_PATH":
                    yield place.with_name("stored_tokens")  # huggingface_hub writes it there


def _absolute(path: str) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:  # ~somebody whom the machine does not know
        return Path(path).absolute()
