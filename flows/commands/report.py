"""`rlvf report`."""

import argparse
import json
import webbrowser
from pathlib import Path

from flows.commands.command import Command
from flows.commands.named_run import named_run, written_to
from flows.start.finetunes import known_run_or_finetune
from flows.start.runs import local_folder
from infra.home import rlvf_home
from infra.interrupts import put_off
from infra.security.printable import printable

EXAMPLES = """
rlvf report 20260101-120000-tiny                       report.html, and the picture of its reward beside it
rlvf report s3://bucket/runs/first --out first.html    of a run at any URI, also while it is in progress
"""


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="its URI, its folder's name, or newest")
    command.add_argument("--out", metavar="FILE", help="where to write it; default: report.html in the run's folder")
    command.add_argument("--open", action="store_true", help="show it in the browser")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _run(given: argparse.Namespace) -> None:
    with put_off():
        from flows.report.html import REPORT, write_report
        from infra.runs.record import read_record

    uri = named_run(given.run, known_run_or_finetune)
    folder = local_folder(uri, rlvf_home())
    out = Path(given.out).expanduser() if given.out else folder / REPORT
    if out.is_dir():
        raise ValueError(f"--out {given.out} is a folder; name a file in it, such as {out / REPORT}")
    with written_to(out):
        written = write_report(uri, read_record(uri, folder), out)
    if given.open:
        webbrowser.open(written.as_uri())
    print(json.dumps({"report": str(written)}) if given.json else printable(str(written)))


COMMAND = Command("report", "write the report of a run, one HTML file", EXAMPLES, _options, _run)
