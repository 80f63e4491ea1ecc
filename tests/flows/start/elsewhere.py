"""Runs that lie outside of the home."""

from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.start.runs import Run


def saved(uri: str, **options: str) -> Run:
    """One that is there, with these options; a double underscore stands for a dot."""
    dotted = {name.replace("__", "."): value for name, value in options.items()}
    config = read_config(TrainConfig, file=None, overrides=dotted)
    run = Run(uri, config, resumed=True, saved=config)
    run.save_config()
    return run
