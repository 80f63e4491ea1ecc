"""Whether what a run from elsewhere brings with it may be run here: whoever can write where it lies has chosen it."""

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.config import HELD_OUT, TrainConfig
from flows.finetune_config import FinetuneConfig
from flows.start.finetunes import Finetune
from flows.start.runs import Run, without_secrets
from infra import disk
from infra.home import in_home, rlvf_home
from infra.security.printable import printable
from infra.storage.kinds import kind_of
from infra.storage.place import local_path
from infra.storage.typed import DamagedError, read_typed
from rl.algorithms import ALGORITHMS
from rl.config import ENVIRONMENTS, OURS, REWARD_MODEL, TINY, ProblemsConfig, is_in_code
from rl.environments.spec import EnvironmentSpec
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.kl_config import START
from rl.problems.examples import ExamplesConfig
from rl.verifiers.spec import VerifierSpec, is_file
from tasks.own_algorithm import open_algorithm
from tasks.sets.named_set import open_environment, open_verifier

STRICT = ("auto", "bubblewrap")  # sandboxes that are not weaker than what this machine would choose
SOURCE = " (sha256 "
ALGORITHM, ENVIRONMENT = "algorithm", "environment"  # the settings

Program = VerifierSpec | EnvironmentSpec | AlgorithmSpec  # with the text of its file
AnyRun = Run | Finetune[Any]


class NotTrustedError(ValueError):
    """A run brings code, addresses or paths that this home has not seen with it; one line that shows them."""


@dataclass(frozen=True)
class _Remembered:
    """What this home has seen with a run."""

    run: str  # URI
    brings: dict[str, str]


def trusted(run: AnyRun, trust: bool = False, *, ask: bool = False) -> None:
    """Return if what the run brings may be used: it brings nothing that was not asked for here, it lies in this home,
    it is what this home saw last, `trust` says so, or somebody at the terminal does, whom a command may `ask` before
    anything runs. What is trusted is remembered.

    Raises NotTrustedError; also, whatever is said, where a link leads out of a folder that is not in this home.
    """
    if _is_ours(run):
        return
    refuse_odd_files(run.uri)
    known, was = _remembered(run), run.saved or run.config
    now, saved = untrusted_settings(run.config, run.uri), untrusted_settings(was, run.uri)
    brings = {setting: value for setting, value in saved.items() if now.get(setting) == value}
    names = {
        value.rpartition(SOURCE)[0]
        for setting, value in known.items()
        if setting.split(" ")[0] in ("verifier", ENVIRONMENT, ALGORITHM)
    }
    opened: list[Program] = []
    for setting, name in _programs(was):
        # to open another is to ask where nobody has said yes to
        if isinstance(was, TrainConfig) and brings.get(setting) == name and name in names:
            opened.append(_open(setting, name, was))
            brings[setting] = _told(opened[-1])
    if run.model_named:
        brings.pop("policy.model", None)
    if not trust and any(known.get(setting) != value for setting, value in brings.items()):
        what = ", ".join(f"{setting} {value}" for setting, value in brings.items())
        seen = "brings something else than it did here before" if known else "was never trained from here"
        words = printable(f"{run.uri} {seen}, and going on would use its {what}")
        if not (ask and sys.stdin.isatty() and sys.stderr.isatty()):
            raise NotTrustedError(f"{words}; if you know who wrote that, say --trust once")
        print(f"{words}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise NotTrustedError(f"{printable(run.uri)} is not trusted; nothing of it was run")
    remember(run, opened)


def remember(run: AnyRun, programs: Iterable[Program] = ()) -> None:
    """This home has seen what the run brings: sources by their digest, of those that were opened as they were then; the
    others are opened now."""
    brings = untrusted_settings(run.config, run.uri, _all_opened(run.config, programs))
    record = {"run": run.uri, "brings": {**_remembered(run), **brings}}
    disk.write_file(_record(run), json.dumps(record).encode(), 0o600)


def refuse_swapped(run: Run, programs: Iterable[Program]) -> None:
    """Raise NotTrustedError where one of the programs of a run that is `trusted`, as they were opened since, is not
    what it was then."""
    if _is_ours(run):
        return
    known, opened = _remembered(run), _all_opened(run.config, programs)
    for setting, value in untrusted_settings(run.config, run.uri, opened).items():
        if known.get(setting, value) != value:
            raise NotTrustedError(printable(f"{run.uri}: its {setting} was replaced while it was opened: now {value}"))


def _of_programs(config: TrainConfig, uri: str, opened: Iterable[Program]) -> dict[str, str]:
    """Of `untrusted_settings` those of code, and of how it is confined."""
    found = {}
    there = {each.name: each for each in opened}
    for setting, name in _programs(config):
        foreign_judge = name.startswith(REWARD_MODEL) and not _own(name.removeprefix(REWARD_MODEL), uri)
        if _is_code(setting, name):
            found[setting] = _told(there[name]) if name in there else name
        elif foreign_judge or name.startswith(("http://", "https://")):
            found[setting] = name
    if config.verifier.reward_model is not None and not _own(config.verifier.reward_model, uri):
        found["verifier.reward_model"] = config.verifier.reward_model
    for section, confined in (("verifier", config.verifier), (ENVIRONMENT, config.environment)):
        if confined.env:
            found[f"{section}.env"] = ", ".join(confined.env)
        if confined.reads:
            found[f"{section}.reads"] = ", ".join(confined.reads)
        if confined.network:
            found[f"{section}.network"] = "true"
        if confined.sandbox not in STRICT:
            found[f"{section}.sandbox"] = confined.sandbox
    return found


def _is_read(problems: str) -> bool:
    """Whether problems are read from somewhere."""
    return problems != HELD_OUT and not is_in_code(problems)


def untrusted_settings(
    config: TrainConfig | FinetuneConfig, uri: str, opened: Iterable[Program] = ()
) -> dict[str, str]:
    """What the configuration of the run at ``uri`` chooses that its owner would not have others choose, by setting:
    code that is run, and how it is confined, addresses that are told of the run, and what is read into it, with the
    rights of whoever goes on with it: files of this machine, addresses that it can reach, buckets and models that
    it may read. Code is told by its content where it was ``opened``, else by its name. Problems are told by their path:
    they are data, whoever edits them."""
    found = _of_programs(config, uri, opened) if isinstance(config, TrainConfig) else {}
    shown = without_secrets(config)
    read: dict[str, Sequence[ProblemsConfig | ExamplesConfig]] = {"problems": (shown.problems,)}
    if isinstance(shown, TrainConfig):
        read |= {"mix": shown.mix, "evals": shown.evals}
    for setting, several in read.items():
        named = (each.path for each in several if isinstance(each, ExamplesConfig) or _is_read(each.path))
        paths = dict.fromkeys(filter(None, named))
        if foreign := [path for path in paths if not _own(path, uri)]:
            found[setting] = ", ".join(foreign)
    model = shown.policy.model
    if model != TINY and not (_is_path(model) and _own(model, uri)):  # a name at the hub may be a private one
        found["policy.model"] = model
    reference = shown.algorithm.kl.reference if isinstance(shown, TrainConfig) else START
    if reference != START and not (_is_path(reference) and _own(reference, uri)):
        found["algorithm.kl.reference"] = reference
    if shown.policy.engine != OURS:  # is sent prompts, and told where weights lie
        found["policy.engine"] = shown.policy.engine
    if shown.tracking.uri is not None:
        found["tracking.uri"] = shown.tracking.uri
    if shown.cluster.scheduler is not None:
        found["cluster.scheduler"] = shown.cluster.scheduler
    return found


def _programs(config: TrainConfig | FinetuneConfig) -> Iterator[tuple[str, str]]:
    """(setting, name) of the algorithm, the environment and of every verifier."""
    if not isinstance(config, TrainConfig):
        return
    yield ALGORITHM, config.algorithm.name
    if config.environment.name is not None:
        yield ENVIRONMENT, config.environment.name
    yield "verifier", config.verifier.name
    for each in (*config.sets, *config.evals):
        if each.verifier:
            yield f"verifier {each.verifier} of {each.path}", each.verifier  # by both, as a path may be there twice


def _is_code(setting: str, name: str) -> bool:
    """Whether it is a text that is run: an algorithm or an environment that is none of ours, however its path looks, or
    a verifier's file."""
    ours = {ALGORITHM: ALGORITHMS, ENVIRONMENT: ENVIRONMENTS}.get(setting)
    return is_file(name) if ours is None else name not in ours


def _open(setting: str, name: str, config: TrainConfig) -> Program:
    if setting == ENVIRONMENT:
        opened = open_environment(config.environment)
        assert opened is not None
        return opened
    return open_algorithm(config.algorithm) if setting == ALGORITHM else open_verifier(name, config.verifier)


def _told(opened: Program) -> str:
    """A program by its content."""
    return f"{opened.name}{SOURCE}{hashlib.sha256(opened.text.encode()).hexdigest()})"


def _all_opened(config: TrainConfig | FinetuneConfig, opened: Iterable[Program]) -> list[Program]:
    """These, and those of the configuration that are not among them."""
    there = {each.name: each for each in opened}
    if not isinstance(config, TrainConfig):
        return []
    for setting, name in _programs(config):
        if _is_code(setting, name) and name not in there:
            there[name] = _open(setting, name, config)
    return list(there.values())


def _is_ours(run: AnyRun) -> bool:
    """Whether it lies in this home, where nobody else writes."""
    path = local_path(run.uri)
    return path is not None and in_home(path)


def refuse_odd_files(uri: str) -> None:
    """Raise NotTrustedError where a folder outside of this home holds a link that leads out of it: what goes on below
    it would be read, replaced and removed wherever that is; or what is no file, which may never end or do something
    when it is opened."""
    path = local_path(uri)
    if path is None or in_home(path):
        return
    top = Path(os.path.realpath(path))  # as Path.resolve, but that it raises nothing where links go in a circle
    for folder, inside, files in os.walk(top):
        for each in (Path(folder, name) for name in (*inside, *files)):
            try:
                mode = each.lstat().st_mode
            except FileNotFoundError:  # removed meanwhile: the run may be training
                continue
            if stat.S_ISLNK(mode) and not (to := Path(os.path.realpath(each))).is_relative_to(top):
                words = f"{each} is a symbolic link that leads out of its run, to {to}; if you know who made it, put "
                raise NotTrustedError(printable(f"{words}what it leads to in its place"))
            if not (stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                words = f"{each} is no file but {disk.kind_of_node(mode)}, which no run has; remove it"
                raise NotTrustedError(printable(words))


def _own(path: str, run: str) -> bool:
    """Whether a path leads nowhere but to where the run itself lies: into its bucket, or under its folder."""
    if "::" in path:  # an archive's or a cache's: it leads wherever its last part does
        return False
    if (folder := local_path(run)) is not None:
        there = local_path(path)
        # what matches a pattern may be a link to anywhere
        return there is not None and not set("*?[") & set(path) and folder.resolve() in there.resolve().parents
    protocol, separator, rest = path.partition("://")
    own_protocol, _, own_rest = run.partition("://")
    if not separator or protocol != own_protocol:
        return False
    if not kind_of(path).has_folders:  # whoever writes a run there writes the bucket
        return rest.partition("/")[0] == own_rest.partition("/")[0]
    return rest.startswith(f"{own_rest.rstrip('/')}/") and ".." not in rest.split("/")


def _is_path(model: str) -> bool:
    """Whether a model is no name at a hub but files somewhere."""
    return "://" in model or model.startswith(("/", ".", "~")) or Path(model).exists()


def _remembered(run: AnyRun) -> Mapping[str, str]:
    try:
        found = read_typed(_record(run), _Remembered, "")
    except DamagedError:  # it is asked again
        return {}
    return found.brings if found is not None and found.run == run.uri else {}


def _record(run: AnyRun) -> Path:
    return rlvf_home() / "trusted" / f"{hashlib.sha256(run.uri.encode()).hexdigest()[:32]}.json"
