"""`rlvf export`."""

import argparse
import json
import shlex
import sys
from pathlib import Path

from flows.commands.command import Command, say
from flows.commands.named_run import named_run, public_base, written_to
from flows.start.saved import saved_config
from infra.interrupts import put_off
from infra.runs.checkpoints import state_uri
from infra.security.printable import printable
from infra.storage import store
from infra.storage.usable import named_storage_errors

EXAMPLES = """
rlvf export 20260101-120000-tiny                       its model, to a folder of the run's name here
rlvf export newest --merge --out merged                with its adapters (policy.lora) added to the weights
"""
DTYPES = ("auto", "float32", "bfloat16", "float16")


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="its URI, its folder's name, or newest")
    command.add_argument("--out", metavar="FOLDER", help="where to write it, a new folder; default: the run's name")
    command.add_argument(
        "--merge", action="store_true", help="a whole model in place of adapters; of a run without them as it is"
    )
    command.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="of merged weights; auto is that of the frozen model: in bfloat16 what adapters add is rounded",
    )
    command.add_argument("--trust", action="store_true", help="load the model that a run from elsewhere names")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _run(given: argparse.Namespace) -> None:
    if given.dtype != "auto" and not given.merge:
        raise ValueError(f"--dtype {given.dtype}: is of merged weights; add --merge")
    uri = named_run(given.run)
    with named_storage_errors(uri):
        config = saved_config(uri)
    out = Path(given.out or uri.rstrip("/").rpartition("/")[2]).expanduser().absolute()
    if out.exists():
        raise ValueError(f"--out {out}: is there already; name a new folder")
    public = public_base(uri, config, given.trust)
    with put_off():
        from tasks.exported import export

    with named_storage_errors(uri), written_to(out):
        made, step, kind = export(uri, config.policy, public, out, merge=given.merge, dtype=given.dtype)
    if made != out:
        raise ValueError(f"--out {out}: has appeared meanwhile and stays as it is; the model is in {made}")
    rounded = given.merge and config.policy.lora.rank and kind != "float32"
    hint = ", to which what the adapters add is rounded; --dtype float32 keeps it" if rounded else ""
    adapters = bool(config.policy.lora.rank) and not given.merge
    print(
        f"{'adapters (--merge writes a whole model) of policy' if adapters else 'policy'} v{step} in {kind}{hint}",
        file=sys.stderr,
    )
    if (saved := max(store.versions(state_uri(uri)), default=0)) > step:
        say(f"step {saved} is saved and not published: rlvf train --resume {shlex.quote(given.run)} publishes it")
    print(json.dumps({"model": str(out), "step": step, "dtype": kind}) if given.json else printable(str(out)))


COMMAND = Command("export", "write the model of a run to a folder", EXAMPLES, _options, _run)
