"""What CONTRIBUTING.md promises: to add a thing touches one file of the packages. Each is added to a copy of them, and
used from there."""

import re
import shutil
from pathlib import Path

import pytest

from tests.packages_copy import packages_in, ran

pytestmark = pytest.mark.slow

SHOUT = Path(__file__).parent / "rl/verifiers/shout.py"

SHRUNK = '''
"""The mean of the others of its group as baseline, and an option of its own."""

from typing import ClassVar

from pydantic import Field

from rl.algorithms.algorithm import centred
from rl.algorithms.reinforce import Reinforce


class Shrunk(Reinforce):
    summary: ClassVar[str] = "A = r - mean(others)"

    shrink: float = Field(1.0, gt=0, le=1, description="what advantages are multiplied by")

    def advantages(self, batch):
        samples = batch.rewards.shape[1]
        return self.shrink * centred(batch.returns) * samples / (samples - 1)

    def token_loss(self, tokens):
        terms = super().token_loss(tokens)
        return type(terms)(terms.value, {**terms.metrics, "advantage_size": tokens.advantage.abs()})


ALGORITHM = Shrunk
'''

WIDER = '''
"""GRPO with a wider clip."""

from typing import ClassVar

from pydantic import Field

from rl.algorithms.grpo import Grpo


class Wider(Grpo):
    summary: ClassVar[str] = "clipped from above at 0.28"

    clip: float = Field(0.28, gt=0, lt=0.5, description="the ratio's bound")


ALGORITHM = Wider
'''

SHARED_OPTION = """
from rl.learning.algorithm_config import AlgorithmSpec
print([AlgorithmSpec(name=name).algorithm.clip for name in ("awider", "grpo", "wider")])
print([AlgorithmSpec(name=name, clip=0.1).algorithm.clip for name in ("awider", "grpo", "wider")])
print(AlgorithmSpec(name="grpo", clip=0.7).algorithm.clip, AlgorithmSpec().dual_clip)
"""

HELLO = '''
"""`rlvf hello`."""

from flows.commands.command import Command


def _options(parser):
    parser.add_argument("--word")


def _run(given):
    print("hello", given.word)


COMMAND = Command("hello", "say a word", "rlvf hello", _options, _run)
'''

DOUBLES = '''
"""Doubling: a set of problems."""

from itertools import count

from rl.records import Problem


def stream(seed, step, side):
    for index in count():
        number = 2 * (1000 * step + index) + (side == "held_out")
        yield Problem(f"add {number} and {number}.", f"2 * {number}", f"doubles:{seed}.{step}.{index}")
'''

EVALS = """
evals:
  - {path: loud.jsonl, verifier: shout, every: 5}
"""

EVALUATED = """
from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.run.plans import plans
from rl.verifiers.opened import opened
from tasks.sets.problem_set import open_problems

config = read_config(TrainConfig, file="evals.yaml", overrides={})
loud, held_out = plans(config, open_problems(config.sets, config.verifier, config.held_out, config.seed))
verifier = loud.problems.verifiers["loud"]
print(loud.metric("reward"), loud.every, verifier.name, held_out.label)
print([verdict.reward for verdict in opened(verifier).judge(loud.problems.held_out * 2, ["HEY", "hey"])])
"""

RLVF = "from flows.cli import main; main()"

WEBDAV = """
class WebDav(Kind):
    protocols = ("webdav", "locked")
    has_folders = False
    packages = ("webdav4",)
    passing = ("Locked",)
    install = "pip install webdav4"

    def options(self, connect, read, attempts):
        return {"patience": read}

    def explain(self, error):
        return f"WebDAV: {error}; unlock the folder" if self.raised(error) else None
"""

WEBDAV_CLIENT = """
import fsspec
from fsspec.implementations.memory import MemoryFileSystem

class Locked(Exception): pass

class FileSystem(MemoryFileSystem):
    protocol = "webdav"
    store, pseudo_dirs, made = {}, [""], []

    def __init__(self, patience, **kwargs):
        super().__init__(**kwargs)
        self.patience = patience

    def makedirs(self, path, exist_ok=False):
        self.made.append(path)

fsspec.register_implementation("webdav", FileSystem)
fsspec.register_implementation("locked", "webdav5.FileSystem")
"""

KEPT_ELSEWHERE = """
from webdav4 import FileSystem, Locked
from infra.storage import place
from infra.storage.faults import explained
from infra.storage.files import PathError, open_files
from infra.storage.retry_policy import RetryPolicy

place.write_text("webdav://runs/a/config.yaml", "steps: 1")
assert place.names("webdav://runs/a") == ["config.yaml"]
print(f"folders made: {len(FileSystem.made)}, patience {place.remote('webdav://runs')[0].patience}")
print(explained(Locked("423")))

def job(left=[1, 1]):
    if left:
        left.pop()
        raise Locked("423")
    return "there"

print("retried:", RetryPolicy(30)(job))
try:
    next(open_files("locked://problems.csv"))
except PathError as error:
    print(error)
"""

UPDATE = """
import numpy as np
import torch
from rl.learning.algorithm_config import AlgorithmSpec
from rl.config import PolicyConfig
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.learner import Learner
from rl.model.policy import Policy
from rl.records import Batch, Problem, Rollouts
from rl.model.tiny import build_model, build_tokenizer

loss = AlgorithmSpec(name="shrunk", shrink=0.5)
tokenizer = build_tokenizer()
policy = Policy(build_model(len(tokenizer), 0, 0, 0), tokenizer, torch.device("cpu"), torch.float32)
tokens = np.arange(8).reshape(4, 2) + 5
rollouts = Rollouts.padded([Problem("1 + 1", "2", "here")], [[3, 4]], tokens, logprobs=np.full((4, 2), -4.0))
batch = Batch(rollouts, np.float32([[1, 0, 0, 0]]), (("right",) * 4,))
learned = Learner(policy, OptimizerConfig(lr=1e-3)).update(batch, loss, 1.0, 4)
assert learned.applied
print("metric", learned.metrics["policy/advantage_size"])
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return packages_in(tmp_path)


def test_a_loss_its_options_and_its_metrics_are_one_file(copy: Path) -> None:
    (copy / "rl/algorithms/shrunk.py").write_text(SHRUNK)
    done = ran(copy, "-c", UPDATE)
    # A = 0.5 * 4/3 * (3/4, -1/4, -1/4, -1/4): its mean size is 0.5 * 4/3 * 3/8
    assert done.stdout.startswith("metric "), done.stderr
    assert float(done.stdout.split()[1]) == pytest.approx(0.25)
    bounded = ran(copy, "-c", RLVF, "train", "--algorithm", "shrunk", "--algorithm.shrink", "2")
    assert (bounded.returncode, bounded.stderr.count("\n")) == (2, 1)
    assert "algorithm.shrink" in bounded.stderr
    misspelt = ran(copy, "-c", RLVF, "train", "--algorithm", "shrnk")
    assert (misspelt.returncode, misspelt.stderr.count("\n")) == (2, 1)
    assert "shrunk" in misspelt.stderr


def test_algorithms_whose_options_have_one_name_keep_their_own_defaults_and_bounds(copy: Path) -> None:
    (copy / "rl/algorithms/awider.py").write_text(WIDER)
    (copy / "rl/algorithms/wider.py").write_text(WIDER)
    done = ran(copy, "-c", SHARED_OPTION)
    assert done.stdout == "[0.28, 0.2, 0.28]\n[0.1, 0.1, 0.1]\n0.7 3.0\n", done.stderr
    bounded = ran(copy, "-c", RLVF, "train", "--algorithm", "wider", "--algorithm.clip", "0.7")
    assert (bounded.returncode, bounded.stderr) == (
        2,
        "rlvf: algorithm: clip: 0.7 is not allowed with name wider: Input should be less than 0.5\n",
    )
    told = " ".join(ran(copy, "-c", RLVF, "train", "--help", "all").stdout.split())
    assert "awider, wider: the ratio's bound (null takes 0.28); dr_grpo" in told
    assert "(null takes 0.2)" in told


def test_a_command_is_one_file(copy: Path) -> None:
    (copy / "flows/commands/hello.py").write_text(HELLO)
    assert re.search(r"^ +hello +say a word$", ran(copy, "-c", RLVF, "--help").stdout, re.MULTILINE)
    assert ran(copy, "-c", RLVF, "hello", "--word", "there").stdout == "hello there\n"


def test_a_set_of_problems_is_one_file(copy: Path) -> None:
    (copy / "rl/problems/made/doubles.py").write_text(DOUBLES)
    drawn = ran(
        copy, "-c",
        "from tasks.sets.problem_set import open_problems; from rl.config import ProblemsConfig, VerifierConfig\n"
        "made = open_problems((ProblemsConfig(path='doubles'),), VerifierConfig(), 4, 0, 8)\n"
        "print([problem.target for problem in made.draw(3, 2, 0)], [problem.target for problem in made.held_out])",
    )  # fmt: skip
    assert drawn.stdout == "['2 * 6000', '2 * 6002'] ['2 * 1', '2 * 3', '2 * 5', '2 * 7']\n", drawn.stderr
    assert "doubles" in ran(copy, "-c", RLVF, "train", "--help").stdout


def test_a_verifier_is_one_file_and_a_set_to_evaluate_on_a_line_of_yaml(copy: Path) -> None:
    shutil.copy(SHOUT, copy / "rl/verifiers/built_in")
    (copy / "loud.jsonl").write_text('{"prompt": "Say hey.", "target": "hey"}\n')
    (copy / "evals.yaml").write_text(EVALS)
    done = ran(copy, "-c", EVALUATED)
    assert done.stdout == "eval/loud/reward 5 shout held-out\n[1.0, 0.0]\n", done.stderr


def test_a_kind_of_storage_is_one_file(copy: Path) -> None:
    kinds = copy / "infra/storage/kinds.py"
    text = kinds.read_text()
    at = "KINDS: tuple[Kind, ...] = ("
    assert text.count(at) == 1
    kinds.write_text(text.replace(at, f"{WEBDAV}\n\n{at}WebDav(), "))
    (copy / "webdav4.py").write_text(WEBDAV_CLIENT)
    done = ran(copy, "-c", KEPT_ELSEWHERE)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "folders made: 0, patience 15.0",
        "WebDAV: 423; unlock the folder",
        "retried: there",
        "locked://problems.csv: locked:// paths need a package that is not installed: pip install webdav4",
    ]


def test_a_figure_of_a_batch_is_one_file(copy: Path) -> None:
    batch = copy / "tasks/batch/rollout_batch.py"
    at = '            "leases/refused": self.refused,\n'
    text = batch.read_text()
    assert text.count(at) == 1
    batch.write_text(
        text.replace(at, at + '            "completion/longest": int(self.everything.rollouts.lengths.max()),\n')
    )
    done = ran(
        copy, "-c",
        UPDATE.split("learned =")[0].replace('name="shrunk", shrink=0.5', "")
        + "from rl.judging import Judgement; from tasks.batch.rollout_batch import RolloutBatch\n"
        "made = RolloutBatch.of(batch, Judgement(batch.rewards, batch.reasons), [0])\n"
        "print(made.figures()['completion/longest'])",
    )  # fmt: skip
    assert done.stdout == "2\n", done.stderr
