"""The directions in which the packages may import: flows → tasks → {rl, infra}."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from flows.run.workplace import IMPORTS

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {  # of ours
    "flows": {"flows", "tasks", "rl", "infra"},
    "tasks": {"tasks", "rl", "infra"},
    "rl": {"rl"},
    "infra": {"infra"},
}
MUST_NOT_IMPORT = {  # of others'
    "flows": set[str](),
    "tasks": set[str](),
    "rl": {"prefect", "dask", "distributed", "mlflow", "fsspec"},
    "infra": {"transformers"},
}


def imported(source: str, package: str) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every import in `source`, wherever in the file it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, package if node.level else (node.module or "").partition(".")[0]


def violations(source: str, package: str) -> list[str]:
    forbidden = (MAY_IMPORT.keys() - MAY_IMPORT[package]) | MUST_NOT_IMPORT[package]
    return [f"line {line} imports {name}" for line, name in imported(source, package) if name in forbidden]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    found = [
        f"{file.relative_to(ROOT)} {one}" for file in files for one in violations(file.read_text("utf-8"), package)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("package", "source", "found"),
    [
        ("rl", "import numpy\nimport infra.storage.store", ["line 2 imports infra"]),
        ("rl", "from tasks import generate", ["line 1 imports tasks"]),
        ("rl", "def f():\n    import fsspec.core as f", ["line 2 imports fsspec"]),
        ("rl", "if True:\n    from distributed.client import Client", ["line 2 imports distributed"]),
        ("infra", "import torch, transformers", ["line 1 imports transformers"]),
        ("infra", "from rl.records import Problem", ["line 1 imports rl"]),
        ("tasks", "import flows", ["line 1 imports flows"]),
        ("tasks", "import rl.records\nfrom infra import store\nimport prefect", []),
        ("flows", "import tasks, rl, infra, flows.options.reading", []),
        ("rl", "from . import records\nfrom .records import Problem\nimport rlax, infrared", []),
    ],
)
def test_the_check_sees_every_form_of_import(package: str, source: str, found: list[str]) -> None:
    assert violations(source, package) == found


def rooms(package: str) -> dict[str, set[str]]:
    """Which folders and files of a package, given by its dotted name, name which others of it, wherever in a file."""
    found: dict[str, set[str]] = {}
    folder = ROOT / package.replace(".", "/")
    for file in sorted(folder.rglob("*.py")):
        room = file.relative_to(folder).parts[0].removesuffix(".py")
        found.setdefault(room, set()).update(named(file.read_text("utf-8"), package))
    # what is neither folder nor file is a name of the package's own file
    return {room: {name if name in found else "__init__" for name in names} - {room} for room, names in found.items()}


def named(source: str, package: str) -> set[str]:
    """The rooms of `package` that `source` imports."""
    modules = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.removeprefix(f"{package}.").split(".")[0] for name in modules if name.startswith(f"{package}.")}


def circle(names: dict[str, set[str]]) -> list[str]:
    """Rooms each of which names the next and the last the first; [] where there are none."""
    try:
        list(TopologicalSorter(names).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


FOLDERS = sorted({file.parent.relative_to(ROOT) for package in MAY_IMPORT for file in (ROOT / package).rglob("*.py")})


@pytest.mark.parametrize("package", [".".join(folder.parts) for folder in FOLDERS])
def test_no_rooms_of_a_package_import_in_a_circle(package: str) -> None:
    found = rooms(package)
    assert len(found) > 1
    assert circle(found) == []


def test_a_circle_is_seen() -> None:
    assert named("import infra.storage.store as s\ndef f():\n    from infra import disk", "infra") == {
        "storage",
        "disk",
    }
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}


def test_a_circle_through_the_file_of_a_folder_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "__init__.py").write_text("Side = str\ndef f():\n    from made import one")
    (tmp_path / "made" / "one.py").write_text("if TYPE_CHECKING:\n    from made import Side")
    assert set(circle(rooms("made"))) == {"__init__", "one"}


def test_importing_the_packages_loads_nothing_heavy() -> None:
    code = "import sys; old = set(sys.modules); import rl, infra, tasks, flows; print(*sorted(set(sys.modules) - old))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == sorted(MAY_IMPORT)


def loaded_by(code: str) -> set[str]:
    """The modules that a new process has after `code`."""
    code = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=90, check=True
    )
    return set(done.stdout.split())


@pytest.mark.slow
def test_a_flow_imports_no_torch() -> None:
    code = "import flows.train, flows.evaluate, flows.sft\nflows.run.chosen.with_defaults(flows.train.TrainConfig())"
    assert loaded_by(code).isdisjoint({"torch", "transformers"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "files"), [("GENERATOR", ["generator"]), ("TRAINER", ["start", "trainer", "warm_up"])]
)
def test_a_worker_has_imported_what_its_calls_import_inside_them(role: str, files: list[str]) -> None:
    trees = [ast.parse((ROOT / "tasks" / "calls" / f"{name}.py").read_text("utf-8")) for name in files]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = {node.module for call in calls for node in ast.walk(call) if isinstance(node, ast.ImportFrom)}
    assert "rl.loading.policy" in inside
    assert inside - loaded_by(f"import {', '.join(IMPORTS[role])}") == set()


def listed(page: str) -> set[str]:
    """The paths in the tree of files at the end of the page: an entry a line, deeper than its folder; its text names
    files beside it, of a folder those inside, and behind `other/:` those of that one."""
    found, folders, here = set[str](), dict[int, str](), ""
    for line in page.partition("## The files")[2].splitlines():
        text = line.strip()
        entry = re.match(r"([a-z_0-9]+/)(?= |$)|[a-z_0-9]+\.py\b", text)
        if entry and (depth := len(line) - len(line.lstrip())) < 20:  # else the text of the one before goes on
            folders = {of: folder for of, folder in folders.items() if of < depth}
            here = folders[max(folders)] if folders else ""
            if entry[1]:
                here = folders[depth] = f"{here}{entry[1]}"
        inside = ""
        for word in re.findall(r"[a-z_0-9]+/(?=:)|[a-z_0-9]+\.py\b|;", text):
            if word.endswith(".py"):
                found.add(f"{here}{inside}{word}")
            else:
                inside = word.strip(";")
        if inside:
            here = f"{here}{inside}"  # of lines that go on
    return found


def is_one_of_many(file: str) -> bool:
    """Whether it is a command, a bench, a verifier, an environment, a set of problems or an algorithm: the page names
    the folder, so that one more needs no line there."""
    folders = r"flows/(commands|benches)/|rl/(verifiers|environments)/built_in/|rl/problems/(made|played)/"
    declares = file.startswith("rl/algorithms/") and "\nALGORITHM = " in (ROOT / file).read_text("utf-8")
    return declares or bool(re.match(folders, file))


def test_the_page_on_architecture_names_every_file_where_it_lies() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    files = {package: set((ROOT / package).rglob("*.py")) for package in (*MAY_IMPORT, "tests")}
    everywhere = {str(file.relative_to(ROOT)) for those in files.values() for file in those}
    ours = {file for file in everywhere if not file.endswith("__init__.py") and not file.startswith("tests/")}
    assert {file for file in ours if not is_one_of_many(file)} - listed(page) == set()
    assert listed(page) - everywhere == set()
    assert set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`", page)) - everywhere == set()
    assert set(re.findall(r"[a-z_0-9]+\.py", page)) - {Path(file).name for file in everywhere} == set()


def test_a_file_is_listed_where_its_line_stands() -> None:
    page = """a.py\n## The files\n
    rl/             the learning
      made/         a.py: one;  more/: b.py  c.py
                           d.py
      e.py          and f.py
    infra/
      e.py"""
    below = {f"rl/made/{name}.py" for name in ("a", "more/b", "more/c", "more/d")}
    assert listed(page) == {*below, "rl/e.py", "rl/f.py", "infra/e.py"}


def test_no_file_holds_more_than_a_noun() -> None:
    files = [file for package in (*MAY_IMPORT, "tests") for file in sorted((ROOT / package).rglob("*.py"))]
    assert [file for file in files if len(file.read_text("utf-8").splitlines()) > 300] == []  # it usually holds two


def interruptible(source: str) -> list[str]:
    """The imports inside functions, of ours and of transformers, that a signal may break in two: what they
    bring with them makes an ImportError of it."""
    tree = ast.parse(source)
    safe = {
        inside
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and any(ast.unparse(item.context_expr) == "put_off()" for item in node.items)
        for inside in ast.walk(node)
    }
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {node for function in functions for node in ast.walk(function)} - safe
    loading = (ast.unparse(node) for node in inside if isinstance(node, ast.Import | ast.ImportFrom))
    return sorted(
        each for each in loading if re.match(r"(from|import) (flows|tasks|rl|infra|torch|transformers)\b", each)
    )


@pytest.mark.parametrize("room", ["flows/commands", "flows/start"])
def test_an_interrupt_of_a_command_waits_for_an_import(room: str) -> None:
    found = {path.name: interruptible(path.read_text()) for path in (ROOT / room).glob("*.py")}
    assert {name: lines for name, lines in found.items() if lines} == {}
    code = "def f():\n import torch\n with put_off():\n  import scipy\n with other():\n  import transformers\n"
    assert interruptible(code) == ["import torch", "import transformers"]


UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_nothing_that_is_read_can_run_code(package: str) -> None:
    for file in sorted((ROOT / package).rglob("*.py")):
        source = file.read_text("utf-8")
        assert UNPICKLERS.isdisjoint(name for _, name in imported(source, package)), file
        for call in ("torch.load(", "trust_remote_code=True", "allow_pickle=True", "yaml.unsafe_load("):
            assert call not in source, f"{file}: {call}"
