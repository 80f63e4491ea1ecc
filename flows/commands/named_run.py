"""The run that a command reads."""

from flows.commands.unused_up import say_unused_up
from flows.start.runs import known_run
from flows.start.trust import refuse_odd_files
from infra.home import runs_uri
from infra.storage.usable import named_storage_errors


def named_run(name: str) -> str:
    """The URI of the run of that name or URI; refuses one whose files are not plain ones.

    Raises:
        NotARun: there is none; the message has the names that are most like it.
    """
    if "://" not in name:
        say_unused_up()
    with named_storage_errors(name if "://" in name else runs_uri()):
        uri = known_run(name, runs_uri())
    refuse_odd_files(uri)
    return uri
