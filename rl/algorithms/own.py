"""An algorithm of the user's: a class in a file of his, whose text travels to where it is needed."""

import linecache
import re
from functools import lru_cache
from types import ModuleType

from pydantic import PydanticUserError

from rl.algorithms.algorithm import Algorithm


class OwnAlgorithmError(ValueError):
    """A user's algorithm that cannot be used; one line that says why."""


@lru_cache(maxsize=8)
def own_algorithm(name: str, text: str) -> type[Algorithm]:
    """The class that ``path.py:Class`` names, from the text of its file, which is run: it comes from whoever trains.

    Raises OwnAlgorithmError: the text cannot be run, or defines no such `Algorithm`, or one without all of its methods.
    """
    path, _, wanted = name.rpartition(":")
    module = ModuleType("own_algorithm")
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)  # tracebacks show its lines
    try:
        exec(compile(text, path, "exec"), module.__dict__)
    except PydanticUserError as error:
        said = re.search(r"`(\w+) = ", str(error))
        option = said.group(1) if said else "an option"
        raise OwnAlgorithmError(
            f"algorithm {path}: {option} has no type; write {option}: float = …, as of every option, or {option}: "
            "ClassVar[…] = … for what no run changes"
        ) from error
    except ModuleNotFoundError as error:
        raise OwnAlgorithmError(
            f"algorithm {path}: ModuleNotFoundError: {error}; the file travels alone: what lies beside it is not there"
        ) from error
    except Exception as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise OwnAlgorithmError(f"algorithm {path}{line}: {type(error).__name__}: {error}") from error
    found = getattr(module, wanted, None)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        there = [key for key, of in vars(module).items() if isinstance(of, type) and issubclass(of, Algorithm)]
        mine = [key for key in there if vars(module)[key].__module__ == module.__name__]
        have = (
            f"it has {', '.join(mine)}" if mine else "write: class MyAlgorithm(Algorithm), as docs/algorithms.md shows"
        )
        raise OwnAlgorithmError(f"algorithm {path}: no algorithm {wanted!r}; {have}")
    if lacking := sorted(found.__abstractmethods__):
        raise OwnAlgorithmError(f"algorithm {name}: has no {' and no '.join(lacking)}")
    return found
