"""A verifier and its limits as plain data, which travels with every call."""

import ast
import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from rl.config import AUTO, GYM, MADE, REWARD_MODEL, VERIFIERS, ProblemsConfig, VerifierConfig, is_made
from rl.records import Problem
from rl.verifiers import table
from rl.verifiers.contract import FUNCTION, MODEL, SERVICE, Declared

ARITHMETIC, REASONING_GYM = "arithmetic", "reasoning_gym"
_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<function>[^:/\\]*))?")


class VerifierError(ValueError):
    """A verifier that cannot be used: one line that says why and what to do."""


class VerifierSpec(VerifierConfig):
    """A verifier and its limits. The text of a user's file travels along: a verifier's machine may lack the file."""

    text: str = ""
    digest: str = ""  # of the reward model's files, where there is one

    @property
    def rewards(self) -> tuple[str, float] | None:
        """Where the reward model lies whose score is added, and its weight; None without one."""
        if self.declared is MODEL:
            return self.name.removeprefix(REWARD_MODEL), 1.0
        return None if self.reward_model is None else (self.reward_model, self.reward_model_weight)

    @property
    def declared(self) -> Declared:
        """The declaration of its name."""
        return table.declared(self.name)

    @property
    def runs_here(self) -> bool:
        """Whether the verifier runs in the process that asks, and can be opened anywhere."""
        return self.declared.verify is not None

    @property
    def is_service(self) -> bool:
        return self.declared is SERVICE

    @property
    def source(self) -> str:
        """The program that it judges by: the text of the user's file, or of the built-in one's files; empty for a
        service, whose program is not known."""
        return self.text + self.digest + table.source(self.name)

    @property
    def file(self) -> str:
        """The name of the user's file, for messages."""
        return Path(split_name(self.name)[0]).name

    @property
    def function(self) -> str:
        return split_name(self.name)[1]

    def require_known(self) -> None:
        """Raise VerifierError unless there is such a verifier."""
        if self.is_service:
            check_address(self.name)
        elif self.declared is MODEL:
            if not self.name.removeprefix(REWARD_MODEL):
                raise VerifierError(f"verifier {self.name!r}: name the run of rlvf reward-model, reward-model:RUN")
            if self.reward_model is not None:
                raise VerifierError(
                    f"verifier.reward_model {self.reward_model!r}: the verifier is a reward model already; leave out "
                    "one of them"
                )
        elif not self.declared.built_in:
            split_name(self.name)
        self.require_package()

    def require_package(self) -> None:
        """Raise VerifierError unless what it imports is installed here."""
        package = self.declared.package
        if package and find_spec(package) is None:
            raise VerifierError(
                f"verifier {self.name!r} needs {package.replace('_', '-')}: pip install 'rlvf[{self.name}]', on the "
                "verifiers too"
            )

    @property
    def needs_end(self) -> bool:
        """Whether a completion that was cut before its end gets 0: the built-in ones take the answer from the end, and
        a `#### 4` cut from `#### 42` is no answer."""
        return self.truncated == "zero" or (self.truncated == "auto" and self.declared.built_in)

    @property
    def needs_target(self) -> bool:
        return self.declared.built_in

    def example(self, problem: Problem) -> str:
        """A completion that should be right: the verifier's example, or else the target as it is."""
        return self.declared.example(problem) if self.declared.example is not None else problem.target


def refuse_reward_model(config: VerifierConfig) -> None:
    """Raise VerifierError where this process would have to run a model."""
    if config.name.startswith(REWARD_MODEL) or config.reward_model is not None:
        raise VerifierError(
            "verifier: a reward model scores on the workers of a cluster; try it by rlvf eval --policy MODEL "
            "--verifier reward-model:RUN"
        )


def named(name: str, problems: str) -> str:
    """The verifier's name, with `auto` resolved for these problems."""
    if name != AUTO:
        return name
    if problems.startswith(GYM):
        return REASONING_GYM
    return problems if problems in MADE and problems in VERIFIERS else ARITHMETIC


def judged_by(problems: ProblemsConfig, verifier: VerifierConfig) -> str:
    """The name of what judges a set: its own `verifier`, else the one of all sets. A set that is made in code has the
    verifier that reads its targets: of the one of all sets it takes a function or a service, no other built-in one."""
    fits = not is_made(problems.path) or not table.declared(verifier.name).built_in
    return named(problems.verifier or (verifier.name if fits else AUTO), problems.path)


def is_file(name: str) -> bool:
    """Whether the name is that of a user's function; a path may hold any characters."""
    return table.declared(name) is FUNCTION and _FILE.fullmatch(name) is not None


def split_name(name: str) -> tuple[str, str]:
    """The path and the function of a user's verifier. Raises VerifierError where one is missing."""
    found = _FILE.fullmatch(name)
    if found is None:
        remedy = "a function of yours is written my_reward.py:reward, a service https://host:port"
        if meant := _meant(name):
            remedy = f"did you mean {meant}?"
        raise VerifierError(f"verifier {name!r} is none of {', '.join(VERIFIERS)}, {REWARD_MODEL}RUN; {remedy}")
    if not found["function"]:
        raise VerifierError(f"verifier {name!r}: name the function too, such as {found['path']}:reward")
    return found["path"], found["function"]


def _meant(name: str) -> str | None:
    """The verifier that is closest to an unknown name: a function of a file here, where the name is written as Python
    writes modules, or a built-in one."""
    module, _, function = name.partition(":")
    if function and get_close_matches(module.lower().replace("_", "-"), [REWARD_MODEL.rstrip(":")], 1, 0.8):
        return f"{REWARD_MODEL}{function}"
    ways = [(module, function or "reward"), (module.replace(".", "/"), function or "reward")]
    if not function and "." in module:
        above, _, last = module.rpartition(".")
        ways.append((above.replace(".", "/"), last))
    for path, of in ways:
        if of.isidentifier() and Path(f"{path}.py").is_file():
            return f"{path}.py:{of}"
    return next(iter(get_close_matches(name, VERIFIERS, 1)), None)


def check_address(address: str) -> None:
    """Raise VerifierError unless it is the address of a service."""
    try:
        parts = urlsplit(address)
        there = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        there = False
    if not there or parts.query or parts.fragment:
        raise VerifierError(f"verifier {address!r} is no address of a service; write it like https://127.0.0.1:8900")


def check_source(name: str, text: str) -> None:
    """Raise VerifierError unless the text is Python with that function; nothing of it is run."""
    path, function = split_name(name)
    try:
        tree = ast.parse(text, filename=path)
    except SyntaxError as error:
        raise VerifierError(f"verifier {path}:{error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise VerifierError(f"verifier {path}: not Python that can be read ({error})") from error
    functions, others, stars = set(), set(), False
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef():
                functions.add(node.name)
            case ast.AsyncFunctionDef():
                if node.name == function:
                    raise VerifierError(f"verifier {path}:{node.lineno}: {function} is async; write a plain def")
            case ast.Name(ctx=ast.Store()):
                others.add(node.id)
            case ast.ImportFrom() | ast.Import():
                others.update(alias.asname or alias.name for alias in node.names)
                stars = stars or any(alias.name == "*" for alias in node.names)
    if function not in functions | others and not stars:
        there = f"it has {', '.join(sorted(functions))}" if functions else "it has no function"
        raise VerifierError(
            f"verifier {path}: no function {function!r}; {there}; write: def {function}(problem, completion): ..."
        )
