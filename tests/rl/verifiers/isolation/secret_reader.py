"""Run by test_secret_places.py as the machine's worker is: what a living verifier reads of a home and of what variables
name, before and after it is written.

Arguments: a sandbox, and JSON: `written` and `renamed` files whose text is put there while the verifier lives, `asked`
files that it is to open. Prints JSON: for each what it read, or the name of the error.
"""

import json
import os
import sys
from pathlib import Path

from rl.records import Problem
from rl.verifiers.isolation import sandbox
from rl.verifiers.opened import opened
from rl.verifiers.spec import VerifierSpec

TEXT = """
def reward(problem, completion):
    try:
        return 1.0, open(completion).read()
    except OSError as error:
        return 0.0, type(error).__name__
"""


def main() -> None:
    wanted, given = sys.argv[1], json.loads(sys.argv[2])
    if lacks := sandbox.missing(wanted):
        print(json.dumps({"missing": lacks}))
        return
    spec = VerifierSpec(
        name=f"{given['file']}:reward",
        seconds=20.0,
        memory_mb=512,
        text=TEXT,
        sandbox=wanted,
        reads=tuple(given["reads"]),
    )
    verifier = opened(spec, Path(given["home"]))
    problem = Problem("", "", "here", {})

    def reads() -> dict[str, str]:
        verdicts = verifier.judge([problem] * len(given["asked"]), given["asked"])
        return {path: each.error or each.reason for path, each in zip(given["asked"], verdicts, strict=True)}

    before = reads()
    for path in given["written"]:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        for name in (f"{path}.lock", path):
            Path(name).write_text("told nobody")
            Path(name).chmod(0o644)
    for path in given["renamed"]:
        Path(f"{path}.new").write_text("told nobody")
        Path(f"{path}.new").rename(path)
    print(json.dumps({"uid": os.getuid(), "before": before, "after": reads()}))


if __name__ == "__main__":
    main()
