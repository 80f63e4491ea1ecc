"""`rlvf sample`."""

import argparse
import json
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flows.commands.command import Command
from flows.commands.named_run import named_run, public_base
from flows.config import TrainConfig
from flows.start.saved import saved_config
from infra.interrupts import put_off
from infra.security.printable import printable
from infra.storage.usable import named_storage_errors
from rl.config import PolicyConfig
from rl.records import Problem
from rl.verifiers.spec import VerifierSpec, judged_by
from tasks.sets.named_set import NamedSet

EXAMPLES = """
rlvf sample newest "add 3 and 4."                      the most likely completion of the newest run's model
rlvf sample 20260101-120000-tiny "add 3 and 4." --samples 4 --temperature 1
"""


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="its URI, its folder's name, or newest")
    command.add_argument("prompts", metavar="PROMPT", nargs="+", help="asked as the run's problems are")
    command.add_argument("--samples", metavar="N", type=int, help="completions of each, drawn (the most likely one)")
    command.add_argument("--temperature", metavar="T", type=float, help="of these (the run's)")
    command.add_argument("--max-tokens", metavar="N", type=int, help="of a completion at most (the run's)")
    command.add_argument("--seed", metavar="N", type=int, default=0, help="of what is drawn (0)")
    command.add_argument(
        "--device", choices=("auto", "cuda", "mps", "cpu"), default="auto", help="what computes (auto)"
    )
    command.add_argument("--trust", action="store_true", help="load the model that a run from elsewhere names")
    command.add_argument("--json", action="store_true", help="print a JSON object for each prompt")


def _run(given: argparse.Namespace) -> None:
    for name in ("samples", "max_tokens"):
        if (value := getattr(given, name)) is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} {value}: give 1 or more")
    if given.temperature is not None and not (given.samples and 0 < given.temperature <= 10):
        raise ValueError(f"--temperature {given.temperature:g}: give one above 0, 10 at most, with --samples")
    uri = named_run(given.run)
    with named_storage_errors(uri):
        config = saved_config(uri)
    problems = _asked(given.run, config, given.prompts)
    public = public_base(uri, config, given.trust)
    with put_off():
        from transformers.utils.logging import disable_progress_bar

        from rl.loading.policy import load_policy
        from rl.sampling.sampler import sample
        from tasks.exported import export

    disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading
    with tempfile.TemporaryDirectory() as folder:
        with named_storage_errors(uri):
            out, step, _ = export(uri, config.policy, public, Path(folder, "model"), merge=True, dtype="auto")
        policy = load_policy(str(out), PolicyConfig(device=given.device))
    changes = {"temperature": given.temperature, "max_tokens": given.max_tokens}
    sampling = config.sampling.model_copy(update={name: value for name, value in changes.items() if value is not None})
    found = sample(
        policy,
        step,
        problems,
        sampling,
        samples=given.samples or 1,
        seed=given.seed,
        step=0,
        groups=range(len(problems)),
        greedy=given.samples is None,
    )
    for problem, texts in zip(problems, found.texts, strict=True):
        if given.json:
            print(json.dumps({"prompt": problem.prompt, "completions": texts, "step": step}))
    if not given.json:
        apart = "\n\n" if any("\n" in text for texts in found.texts for text in texts) else "\n"
        print(printable(apart.join(text for texts in found.texts for text in texts), lines=True))


def _asked(run: str, config: TrainConfig, prompts: Sequence[str]) -> list[Problem]:
    """The prompts with the system prompt and the template of the run's first set. No file that it names is read."""
    first = config.problems
    if config.environment.name is not None and not first.judged:
        ask = f"rlvf eval --policy {shlex.quote(run)}"
        raise ValueError(f"{run}: acts on an environment, turn by turn, which {ask} does")
    judge = VerifierSpec.model_validate(dict(config.verifier) | {"name": judged_by(first, config.verifier)})
    return NamedSet(first, "", judge, "").marked([Problem(prompt, "", "prompt") for prompt in prompts])


COMMAND = Command("sample", "what a run's model says to a prompt of yours", EXAMPLES, _options, _run)
