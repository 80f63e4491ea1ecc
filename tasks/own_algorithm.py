"""The algorithm of a run, with the text of its file where it is the user's own."""

from infra.storage.files import PathError, open_texts
from rl.algorithms import ALGORITHMS
from rl.algorithms.own import OwnAlgorithmError
from rl.learning.algorithm_config import AlgorithmConfig, AlgorithmSpec
from tasks.sets.named_set import LARGEST, as_typed


def open_algorithm(config: AlgorithmConfig) -> AlgorithmSpec:
    """The algorithm with its options; a user's file, at any fsspec path, is read now, and nothing of it is run.

    Raises:
        OwnAlgorithmError, PathError: its file is missing, or more than one.
    """
    text = ""
    if config.name not in ALGORITHMS:
        path = config.name.rpartition(":")[0]
        try:
            [(_, opened), *more] = open_texts(path, LARGEST)
        except PathError as error:
            raise PathError(str(error).replace(path, as_typed(path))) from error
        if more:
            raise OwnAlgorithmError(f"algorithm {path}: matches more than one file")
        text = opened.read()
    return AlgorithmSpec.model_validate(dict(config) | {"text": text})
