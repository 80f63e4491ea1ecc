"""`rlvf down`."""

import argparse
import os
import signal
import time
from contextlib import suppress

from flows.commands.command import Command
from infra.home import rlvf_home
from infra.services.addresses import UP, is_up, read_up
from infra.services.of_home import living, take_down_leftovers
from infra.services.part import TITLES
from infra.services.supervisor import boot_name

EXAMPLES = """
rlvf down                                              stop what rlvf up started; runs and their state stay
"""
SECONDS = 60.0  # for `rlvf up` to stop before it is killed, and its services with it


def _options(_: argparse.ArgumentParser) -> None:
    pass


def _run(_: argparse.Namespace) -> None:
    home = rlvf_home()
    stopped = 0
    deadline = time.monotonic() + SECONDS
    while (up := read_up(home)) is None and is_up(home) and time.monotonic() < deadline:
        time.sleep(0.05)  # it has just begun, and has not written its process id yet
    if is_up(home) and up is not None:
        if up.machine != boot_name():
            where = up.machine.partition(" ")[0] or "another machine"
            raise ValueError(f"rlvf up of {home} runs on {where}: rlvf down there")
        with suppress(ProcessLookupError):
            os.kill(up.pid, signal.SIGTERM)
        before = living(home)
        deadline = time.monotonic() + SECONDS
        while is_up(home):
            now = living(home)
            for name in [name for name in before if name not in now]:
                print(f"stopped the {TITLES[name]}", flush=True)
                stopped += 1
            before = now
            if time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.kill(up.pid, signal.SIGKILL)
            time.sleep(0.05)
        for name in [name for name in before if name not in living(home)]:
            print(f"stopped the {TITLES[name]}")
            stopped += 1
    stopped += take_down_leftovers(home, print)
    if not is_up(home):
        (home / UP).unlink(missing_ok=True)
    if "prefect" in living(home):
        print("the Prefect server stays: a run of this home uses it")
    if not stopped:
        print(f"nothing is up in {home}")


COMMAND = Command("down", "stop what rlvf up started", EXAMPLES, _options, _run)
