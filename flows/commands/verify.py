"""`rlvf verify`."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from flows.commands.command import Command, say
from flows.config import VerifyConfig
from flows.options.reading import add_options, read_config
from infra.home import rlvf_home
from infra.security.printable import printable
from rl.config import MADE
from rl.records import Problem, Verdict
from rl.verifiers.contract import Verifier
from rl.verifiers.opened import opened
from rl.verifiers.spec import VerifierSpec, refuse_reward_model
from tasks.sets.problem_set import problems_to_solve

EXAMPLES = """
rlvf verify my_reward.py:reward --problems problems.jsonl      its first rows, each with its target and with nothing
rlvf verify my_reward.py:reward --problems problems.jsonl --completion '3 + 4'
rlvf verify gsm8k --problems gsm8k.jsonl --rows 100 --json
rlvf verify countdown --completion '3 * 7 + 5'                 on the problems of that name, if no others are named
"""
SHOWN = 60  # characters of a text


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("verifier", metavar="VERIFIER", help="my_reward.py:reward, a name or an address")
    command.add_argument(
        "--completion", metavar="TEXT", action="append", help="completion to judge on each row instead; may be repeated"
    )
    command.add_argument("--rows", metavar="N", type=int, default=3, help="problems to look at (default 3)")
    command.add_argument("--json", action="store_true", help="print a JSON object for each verdict")
    command.usage = "%(prog)s VERIFIER [options]"
    add_options(command, VerifyConfig)


def _run(given: argparse.Namespace) -> None:
    if given.rows < 1:
        raise ValueError(f"--rows {given.rows}: give 1 or more")
    overrides = {**given.overrides, "verifier": given.verifier}
    if given.verifier in MADE and given.config is None and not any(name.startswith("problems") for name in overrides):
        overrides["problems"] = given.verifier  # which it is made for
    config = read_config(VerifyConfig, file=given.config, overrides=overrides)
    refuse_reward_model(config.verifier)
    asked = config.problems.model_copy(update={"verifier": config.verifier.name})
    problems = problems_to_solve((asked,), config.verifier, 0, 0)
    (spec,) = problems.verifiers.values()
    verifier = opened(spec, rlvf_home())
    failures: Counter[str] = Counter()  # by what is said of them
    count, beyond, right = 0, False, False
    try:
        verifier.warm()
        if verifier.about:
            print(f"verifier {spec.name}: {verifier.about}", file=sys.stderr)
        for problem, completion, verdict, seconds in _tried(
            verifier, spec, problems.held_out[: given.rows], given.completion
        ):
            count += 1
            beyond |= not verdict.error and not 0 <= verdict.reward <= 1
            right |= verdict.reward == 1
            if verdict.error:
                failures[alike := verdict.error.replace(problem.source, "")] += 1
                if failures[alike] > 1 and not given.json:
                    continue  # said already
            print(
                _row(problem, completion, verdict, seconds)
                if given.json
                else _line(problem, completion, verdict, seconds)
            )
    finally:
        verifier.close()
    if beyond:
        say("rewards outside of 0 to 1 train, but reward/pass_rate counts those that are exactly 1")
    if failures:
        words = f"{failures.total()} of {count} completions could not be judged"
        ways = " and ".join(str(each) for each in failures.values())
        same = ", all in the same way" if len(failures) == 1 else f", in {len(failures)} ways: {ways} of them"
        say(words + (same if failures.total() > len(failures) else ""))
        sys.exit(1)  # a traceback would be this command's, not the verifier's
    if not right and not given.completion:
        say("none of these has reward 1: try a completion that should, by --completion")


def _tried(
    verifier: Verifier, spec: VerifierSpec, problems: Sequence[Problem], completions: Sequence[str] | None
) -> Iterator[tuple[Problem, str, Verdict, float]]:
    for problem in problems:
        for completion in completions or dict.fromkeys([spec.example(problem), ""]):
            began = time.perf_counter()
            (verdict,) = verifier.judge([problem], [completion])
            yield problem, completion, verdict, time.perf_counter() - began


def _line(problem: Problem, completion: str, verdict: Verdict, seconds: float) -> str:
    parts = ", ".join(f"{name} {value:g}" for name, value in verdict.parts.items())
    said = f"could not be judged: {verdict.error}" if verdict.error else f"reward {verdict.reward:g} ({verdict.reason})"
    line = f"{problem.source}  {_short(completion)}  {said}{f'  {parts}' if parts else ''}  {seconds * 1000:.1f} ms"
    return printable(line)


def _row(problem: Problem, completion: str, verdict: Verdict, seconds: float) -> str:
    row: dict[str, Any] = {"source": problem.source, "completion": completion, "reward": verdict.reward}
    row |= {"reason": verdict.reason, "parts": dict(verdict.parts), "error": verdict.error or None, "seconds": seconds}
    return json.dumps({**row, "reward": None} if verdict.error else row)


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…")


COMMAND = Command("verify", "try a verifier on a few problems, before anything is trained", EXAMPLES, _options, _run)
