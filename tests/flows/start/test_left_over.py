"""A new run where one was removed in part."""

from pathlib import Path

import pytest

from flows.config import TrainConfig
from flows.start.runs import new_run


@pytest.mark.parametrize("left", ["state/3", "weights/v2"])
def test_what_is_left_of_a_run_is_none_to_begin_upon(tmp_path: Path, left: str) -> None:
    (tmp_path / "again" / left).mkdir(parents=True)
    with pytest.raises(ValueError, match=r"again holds checkpoints or weights and no config\.yaml"):
        new_run(TrainConfig(run="again"), str(tmp_path))
