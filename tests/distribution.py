"""Which process of pytest-xdist gets which file of tests."""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling


class BesideTheirLab(LoadFileScheduling):
    """A file's tests stay together, in the order of the files, and files whose tests share the fixture `lab` go to a
    process that has one: it takes more than 10 processor seconds to start. The others begin with the other files, and
    start another only when none of these is left."""

    def _assign_work_unit(self, node: object) -> None:
        having = [each for each, assigned in self.assigned_work.items() if any(map(self._trains, assigned))]
        wanted = not having or node in having
        if (next_one := next((file for file in self.workqueue if self._trains(file) == wanted), None)) is not None:
            self.workqueue.move_to_end(next_one, last=False)
        super()._assign_work_unit(node)

    def _trains(self, file: str) -> bool:
        return _names_lab(self.config.rootpath / file)


@cache
def _names_lab(file: Path) -> bool:
    return re.search(r"\blab\b", file.read_text("utf-8")) is not None
