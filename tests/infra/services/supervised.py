"""A service of two processes, for tests: real ones."""

import sys

import psutil

from infra.services.supervisor import Program, Service
from tests.processes import until

SLEEPER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
time.sleep(100)
"""


def program(service: Service, code: str = SLEEPER, **environment: str) -> Program:
    return Program([sys.executable, "-c", code], environment, service.folder)


def group(service: Service) -> list[psutil.Process]:
    """What a service runs, its supervisor aside, once its two processes are there."""
    until(lambda: service.found().pid)
    return until(lambda: (found := psutil.Process(service.found().pid).children(recursive=True))[1:] and found)


def gone(processes: list[psutil.Process]) -> bool:
    return not [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
