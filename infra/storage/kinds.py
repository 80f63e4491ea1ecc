"""What sets a kind of storage apart from what fsspec makes of it: a class for each kind, in `KINDS`."""

from collections.abc import Iterable
from typing import Any

from infra.errors import causes, one_line


class Kind:
    """A storage that nothing sets apart."""

    protocols: tuple[str, ...] = ()  # of its URIs
    has_folders = True  # where there are none, making one is needless, and at the top level would make a bucket
    packages: tuple[str, ...] = ()  # whose exceptions its client raises
    passing: tuple[str, ...] = ()  # the exceptions among them, by name, after which the same call may succeed
    install = ""  # the command that installs its client
    repeats = False  # its file system repeats requests as often as its `retries` says, around what its client repeats
    endpoint = ""  # the environment variable with the address of the store

    def options(self, connect: float, read: float, attempts: int) -> dict[str, Any]:
        """What its file system is made with; `connect` and `read` are seconds."""
        del connect, read, attempts
        return {}

    def explain(self, error: BaseException) -> str | None:
        """One line with what to do about an error of its client; None for any other error."""
        del error
        return None

    def raised(self, error: BaseException, names: tuple[str, ...] = ()) -> bool:
        """Whether the error is of its client, and of one of these classes if `names` are given."""
        ours = [each for each in type(error).__mro__ if each.__module__.partition(".")[0] in self.packages]
        return any(not names or each.__name__ in names for each in ours)


class S3(Kind):
    protocols = ("s3", "s3a")
    has_folders = False
    packages = ("botocore", "aiobotocore")
    passing = ("ClientError", "HTTPClientError", "BotoCoreError")
    install = "pip install 'rlvf[s3]'"
    repeats = True
    endpoint = "AWS_ENDPOINT_URL_S3"

    def options(self, connect: float, read: float, attempts: int) -> dict[str, Any]:
        retries = {"mode": "standard", "total_max_attempts": attempts}
        return {"config_kwargs": {"connect_timeout": connect, "read_timeout": read, "retries": retries}}

    def explain(self, error: BaseException) -> str | None:
        kind = type(error).__name__
        if self.raised(error):
            if "Credentials" in kind or "Token" in kind:
                remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            elif "Endpoint" in kind or "Connect" in kind:
                remedy = "is the network up, and AWS_ENDPOINT_URL_S3 the address of your store?"
            else:
                remedy = "check AWS_ENDPOINT_URL_S3, the name of the bucket and the credentials"
        elif isinstance(error, PermissionError | FileNotFoundError) and any(map(self.raised, causes(error))):
            remedy = "check the name of the bucket, the credentials and AWS_ENDPOINT_URL_S3"
        else:
            return None
        return f"S3: {one_line(error)}; {remedy}"


class Http(Kind):
    protocols = ("http", "https")
    packages = ("aiohttp",)
    passing = ("ClientError", "ServerTimeoutError", "ClientPayloadError")

    def options(self, connect: float, read: float, attempts: int) -> dict[str, Any]:
        del attempts
        from aiohttp import ClientTimeout

        return {"client_kwargs": {"timeout": ClientTimeout(None, sock_connect=connect, sock_read=read)}}


class Bucket(Kind):
    protocols = ("memory", "gs", "gcs", "az", "abfs", "abfss")
    has_folders = False


KINDS: tuple[Kind, ...] = (S3(), Http(), Bucket())


def kind_of(uri: str) -> Kind:
    """The kind of storage in which a URI lies."""
    protocol, separator, _ = uri.partition("://")
    return kind_by([protocol] if separator else [])


def kind_by(protocols: Iterable[str]) -> Kind:
    """The kind that has one of these protocols."""
    given = set(protocols)
    return next((kind for kind in KINDS if given & set(kind.protocols)), Kind())
