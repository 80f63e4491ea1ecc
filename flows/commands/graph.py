"""`rlvf graph`."""

import argparse
import json
import re
from pathlib import Path

from flows.commands.command import Command
from flows.commands.named_run import named_run, written_to
from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.options.usual_names import unknown
from flows.planner.calls import graph_of_config
from flows.planner.drawing import as_json, drawing, mermaid
from flows.planner.measured import measured_step
from flows.report.graph_picture import graph_picture
from flows.start.runs import local_folder
from flows.start.saved import saved_config
from infra.cluster.placement import PlacementConfig
from infra.home import rlvf_home
from infra.runs.record import read_record
from infra.security.printable import printable
from rl.algorithms import ALGORITHMS
from rl.learning.algorithm_config import OWN_PATTERN
from tasks.own_algorithm import open_algorithm

EXAMPLES = """
rlvf graph                                             the calls of a step of reinforce, as Mermaid's text
rlvf graph ppo                                         of another algorithm
rlvf graph grpo --kl 0.01                              and with a reference model
rlvf graph my_algorithm.py:MyAlgorithm                 of your own algorithm, whose file is run for it
rlvf graph --run newest                                of a run, with the seconds, place and waits of each call
rlvf graph ppo --output graph.svg                      a picture: SVG or PNG
"""
KINDS = (".png", ".svg")


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "algorithm", metavar="ALGORITHM", nargs="?", help="its name, or FILE.py:CLASS (default: reinforce)"
    )
    command.add_argument(
        "--kl", "--algorithm.kl", metavar="NUMBER", type=float, help="KL to a reference model, with this weight"
    )
    command.add_argument("--run", metavar="RUN", help="a run's URI, its folder's name, or newest: as it was measured")
    command.add_argument("--output", metavar="FILE", help="draw a picture there: FILE.png or FILE.svg")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _run(given: argparse.Namespace) -> None:
    if given.algorithm is not None and given.run is not None:
        raise ValueError(f"ALGORITHM {given.algorithm}: a run has one already; leave it out, or --run")
    if given.kl is not None and given.run is not None:
        raise ValueError(f"--kl {given.kl:g}: a run has one already, or none; leave it out, or --run")
    out = None if given.output is None else Path(given.output).expanduser()
    if out is not None and out.suffix.lower() not in KINDS:
        raise ValueError(f"--output {given.output}: a picture is {' or '.join(f'FILE{kind}' for kind in KINDS)}")
    step = None
    if given.run is not None:
        uri = named_run(given.run)
        config = saved_config(uri)
        record = read_record(uri, local_folder(uri, rlvf_home()))
        step = measured_step(record, uri)
        graph = graph_of_config(config.algorithm, step.calls)
        title, placement = f"{config.algorithm.name}: {uri.rstrip('/').rpartition('/')[2]}", config.placement
    else:
        name = given.algorithm or TrainConfig().algorithm.name
        if name not in ALGORITHMS and not re.fullmatch(OWN_PATTERN, name):
            raise ValueError(
                unknown(name, ALGORITHMS, "unknown algorithm ", "") + f"; there are {', '.join(ALGORITHMS)}"
            )
        asked = {} if given.kl is None else {"algorithm.kl": str(given.kl)}
        algorithm = read_config(TrainConfig, file=None, overrides={"algorithm": name, **asked}).algorithm
        graph, title, placement = open_algorithm(algorithm).graph(), name, PlacementConfig()
    drawn = drawing(title, graph, placement, step)
    if out is not None:
        with written_to(out, "--output"):
            graph_picture(out, drawn)
    if given.json:
        print(json.dumps({**as_json(drawn, graph, step), **({} if out is None else {"output": str(out)})}))
    else:
        print(printable(mermaid(drawn) if out is None else str(out), lines=True))


COMMAND = Command("graph", "draw the call graph of a step; of a run with places and times", EXAMPLES, _options, _run)
