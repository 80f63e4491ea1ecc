"""The options of a saved run's algorithm, when another one is added that has options of their names."""

import json
from pathlib import Path

import pytest

from flows.start.saved import SAVED_BEFORE
from rl.algorithms import ALGORITHMS
from rl.learning.algorithm_config import AlgorithmConfig
from tests.packages_copy import packages_in, ran

OTHERS_OPTIONS = '''
"""Every option of the others, with defaults of its own."""

from typing import ClassVar

from pydantic import Field

from rl.algorithms.reinforce import Reinforce


class Own(Reinforce):
    summary: ClassVar[str] = "as REINFORCE"

    OPTIONS


ALGORITHM = Own
'''

READS_SAVED = """
import json
from flows.options.reading import differences
from flows.start.runs import without_secrets
from flows.start.saved import saved_config
from pathlib import Path
from rl.learning.algorithm_config import AlgorithmSpec
from rl.algorithms import ALGORITHMS

Path("run").mkdir(exist_ok=True)
for saved in json.load(open("saved.json")):
    Path("run/config.yaml").write_text(json.dumps({"algorithm": saved}))  # which is YAML, too
    config = saved_config("run")
    assert differences(config, without_secrets(config)) == []
    if config.algorithm.name in ALGORITHMS:
        print(AlgorithmSpec(**dict(config.algorithm)).algorithm.model_dump_json())
    else:
        print(config.algorithm.options)
"""


@pytest.mark.slow
def test_what_is_saved_is_read_the_same_whatever_algorithm_is_added(tmp_path: Path) -> None:
    copy = packages_in(tmp_path)
    options = {name: field for of in ALGORITHMS.values() for name, field in of.model_fields.items()}
    mine: dict[str, object] = {"name": "mine.py:Mine", "options": {"beta": 0.3}}
    each = [mine, *({"name": name} for name in ALGORITHMS)]
    older = [{**SAVED_BEFORE, "ratio_cap": cap, **one} for one in each for cap in (2.0, None)]
    of_now = [AlgorithmConfig.model_validate(one).model_dump(mode="json") for one in each]
    given = [
        {**SAVED_BEFORE, "name": name, option: field.default}
        for name, of in ALGORITHMS.items()
        for option, field in of.model_fields.items()
    ]
    (copy / "saved.json").write_text(json.dumps(saved := [*older, *of_now, *given]))
    before = ran(copy, "-c", READS_SAVED)
    assert before.stdout.count("\n") == len(saved), before.stderr
    fields = [
        f"    {name}: {kind.__name__} = Field({kind(not field.default)}, description='another default')"
        for name, field in options.items()
        if (kind := field.annotation) is not None
    ]
    (copy / "rl/algorithms/others_options.py").write_text(OTHERS_OPTIONS.replace("    OPTIONS", "\n".join(fields)))
    after = ran(copy, "-c", READS_SAVED)
    assert after.stdout == before.stdout, after.stderr
