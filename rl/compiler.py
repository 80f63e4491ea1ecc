"""The compiler of C, if this machine has one: kernels are compiled by it on a processor, and by Triton on CUDA."""

import os
import shutil
import subprocess
import sys


class NoCompilerError(RuntimeError):
    """There is none of C here."""


def c_compiler() -> str:
    """Its path: what CC in the environment says, else `cc`. Raises NoCompilerError."""
    found = shutil.which(os.environ.get("CC") or "cc")
    # on a Mac without its developer tools `cc` is a program that opens a window and offers them
    if found and sys.platform == "darwin" and subprocess.run(["xcode-select", "-p"], capture_output=True).returncode:
        found = None
    if found is None:
        raise NoCompilerError("there is no compiler of C here (`cc`)")
    return found
