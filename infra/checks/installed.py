"""Whether what is installed is what the project asks for."""

import importlib.metadata
import re
from pathlib import Path

from packaging.requirements import Requirement

from infra.checks.machine import Check

INSTALL = "pip install -c constraints.txt -e . in a clone of the project"


def check_requirements(name: str = "rlvf") -> Check:
    """Every package that the distribution requires, extras aside: installed, and in the range."""
    try:
        asked = [Requirement(line) for line in importlib.metadata.requires(name) or ()]
    except importlib.metadata.PackageNotFoundError:
        return Check("installed", "fail", f"{name} is not installed, only on the path", INSTALL)
    needed = [each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
    wrong = []
    for each in needed:
        found = version_of(each.name)
        if found is None:
            wrong.append(f"{each.name} is missing")
        elif not each.specifier.contains(found, prereleases=True):
            wrong.append(f"{each.name} {found} is not {each.specifier}")
    if wrong:
        return Check("installed", "fail", ", ".join(wrong), INSTALL)
    return Check("installed", "ok", f"{name} {importlib.metadata.version(name)} with its {len(needed)} packages")


def check_constraints(file: Path) -> Check:
    """How far the installed versions are those that the project was tested with. Builds (2.13.0+cpu) do not count."""
    differ = []
    for line in file.read_text().splitlines():
        pinned = re.fullmatch(r"([\w.-]+)==([^\s;#]+).*", line)
        found = version_of(pinned[1]) if pinned else None
        if pinned and found and found.partition("+")[0] != pinned[2].partition("+")[0]:
            differ.append(f"{pinned[1]} {found} ({pinned[2]})")
    if not differ:
        return Check("tested", "ok", f"the versions of {file.name}")
    shown = ", ".join(differ[:5]) + (f" and {len(differ) - 5} more" if len(differ) > 5 else "")
    return Check("tested", "warn", f"other versions than in {file.name}: {shown}", INSTALL)


def version_of(package: str) -> str | None:
    """The installed version, None without one."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
