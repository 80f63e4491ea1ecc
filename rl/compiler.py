"""The compiler of C, if this machine has one: kernels are compiled by it on a processor, and by Triton on CUDA."""

import os
import shlex
import shutil
import subprocess
import sys


class NoCompilerError(RuntimeError):
    """There is none of C here."""


def c_compiler() -> tuple[str, ...]:
    """Its path, and what it is given first: what CC in the environment says, else `cc`. Raises NoCompilerError."""
    name, *options = shlex.split(os.environ.get("CC", "")) or ["cc"]
    found = shutil.which(name)
    # on a Mac without its developer tools `cc` is a program that opens a window and offers them
    if found and sys.platform == "darwin" and subprocess.run(["xcode-select", "-p"], capture_output=True).returncode:
        found = None
    if found is None:
        raise NoCompilerError(f"there is no compiler of C here (`{name}`)")
    return found, *options
