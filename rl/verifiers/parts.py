"""Bounds of a verdict, whoever gives it: a user's function or a service. Each part of a reward is a metric."""

MAX_REWARD = 1e6
MAX_REASON = 60  # characters, as of the name of a part
MAX_PARTS = 16
TAKEN = ("mean", "pass_rate", "error_rate")  # names of metrics beside those of the parts


def is_part_name(name: object) -> bool:
    """Whether a part may have this name: `reward/<name>` is a metric."""
    return isinstance(name, str) and name.isidentifier() and name.isascii() and name not in TAKEN
