"""Runs on examples: files of demonstrations and of pairs, and the flows on the shared cluster."""

import json
from pathlib import Path
from typing import Any

from flows.finetune_config import DpoConfig, FinetuneConfig, RewardModelConfig, SftConfig
from flows.options.reading import read_config

KINDS: dict[str, type[FinetuneConfig]] = {kind.method: kind for kind in (SftConfig, DpoConfig, RewardModelConfig)}
SUMS = [(a, b) for a in range(2, 14) for b in range(20, 25)]


def write_examples(folder: Path) -> Path:
    """Demonstrations and pairs whose difference is easily learned."""
    shown = [{"question": f"take {a} from {b}.", "response": f"{b} - {a}"} for a, b in SUMS]
    pairs = [{"prompt": f"add {a} and {b}.", "chosen": f"{a} + {b}", "rejected": f"{a} * {b}"} for a, b in SUMS]
    for name, rows in (("shown", shown), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def tune(lab: Any, method: str, files: Path, resume: str | None = None, **changes: str) -> Path:
    """Run the flow in this process; returns the run's folder."""
    from flows import sft as flows

    lab.settle()
    name = changes.get("run") or resume or lab.new_name()
    options = {
        "problems": str(files / ("shown.jsonl" if method == "sft" else "pairs.jsonl")),
        "policy": str(lab.policy),
        "cluster.scheduler": lab.client.scheduler.address,
        "batch": "8",
        "optimizer.lr": "1e-3",
        "tracking.system_metrics": "false",
        "tracking.report": "false",  # a second each
        "run": name,
        **{option.replace("__", "."): value for option, value in changes.items()},
    }
    with lab.prefect():
        config = read_config(KINDS[method], file=None, overrides=options)
        getattr(flows, method.replace("-", "_"))(config, resume)
    return Path(lab.run_folder(name))
