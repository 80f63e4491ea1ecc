"""What the fork server does before it forks the first worker (`infra.cluster.fork_server`): the imports of them all."""

import atexit
import gc
import importlib
import os
from contextlib import suppress

from infra.cluster.fork_server import MODULES
from infra.cluster.source import source_digest

atexit.register(os._exit, 0)  # there is nothing to clean up, and to take torch down takes a while
gc.disable()
for module in os.environ.pop(MODULES, "").split():
    with suppress(Exception):  # the worker that needs it raises it, into its log
        importlib.import_module(module)
source_digest()  # of what was imported here, whatever is there when a worker is forked
gc.freeze()
gc.enable()
