"""What a command says that does not use the `rlvf up` of its home, as its shell does not name that."""

import os

from flows.commands.command import say
from infra.cluster.cluster_config import ClusterConfig, joined_scheduler
from infra.home import rlvf_home, rlvf_storage
from infra.services.addresses import is_up, running


def say_unused_up(cluster: ClusterConfig | None = None) -> None:
    """Say so, where an `rlvf up` of this home runs and neither the environment nor an option names another scheduler.
    What is not used is its scheduler, by a command that works on a `cluster`, and its storage."""
    home = rlvf_home()
    if not is_up(home) or joined_scheduler(cluster or ClusterConfig()) is not None:
        return
    up = running(home)
    ignored = [f"scheduler {up.scheduler}"] if cluster is not None and up.scheduler else []
    if up.storage and not os.environ.get("RLVF_STORAGE") and up.storage.rstrip("/") != rlvf_storage():
        ignored.append(f"storage {up.storage}")
    if ignored:
        say(
            f"rlvf up runs here, and this shell does not use its {' and '.join(ignored)}; so that it does: "
            'eval "$(rlvf status --shell)"'
        )
