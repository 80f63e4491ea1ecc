"""What the parts of a reward may be called, whoever gives them: a user's function or a service. Each is a metric."""

MAX_PARTS = 16
TAKEN = ("mean", "pass_rate", "error_rate")  # names of metrics beside those of the parts


def is_part_name(name: object) -> bool:
    """Whether a part may be called so: `reward/<name>` is then a metric of its own."""
    return isinstance(name, str) and name.isidentifier() and name.isascii() and name not in TAKEN
