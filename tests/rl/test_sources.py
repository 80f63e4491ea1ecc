"""What a result is computed by is all that its code imports, as Python finds it."""

import subprocess
import sys
from pathlib import Path

from rl.sources import RL, closure, path_of
from tasks.calls import warm_up


def test_the_files_of_a_warm_up_are_those_that_python_imports_for_it() -> None:
    script = (
        "import sys, tasks.calls.warm_up; print(*[m.__file__ for n, m in sys.modules.items() if n.startswith('rl.')])"
    )
    said = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout
    imported = {Path(file) for file in said.split()}
    by_name = {path_of(f"rl.algorithms.{name}") for name in ("grpo", "reinforce")}  # by what the configuration says
    packages = {file for file in imported if file.name == "__init__.py" and "import" not in file.read_text("utf-8")}
    found = set(closure([Path(warm_up.__file__)]))
    assert imported - by_name - packages <= found
    assert {path_of("rl.learning.optimizers"), path_of("rl.learning.passes"), path_of("rl.model.in_place")} <= found


def test_what_is_left_out_brings_nothing_along() -> None:
    learner, passes = path_of("rl.learning.learner"), path_of("rl.learning.passes")
    assert passes in closure([learner])
    assert passes not in closure([learner], {passes})
    assert closure([path_of("rl.learning.schedules")]) == [RL / "learning" / "schedules.py"]
