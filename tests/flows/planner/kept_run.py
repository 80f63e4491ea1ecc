"""A run's files as a session leaves them, of calls whose seconds are known."""

import json
from collections.abc import Mapping
from pathlib import Path

from flows.config import TrainConfig
from flows.start.saved import whole_text
from infra.storage import store
from infra.weights.version import VersionManifest, weights_uri

BEGAN = 1_790_000_000.0


def span(worker: str, call: str, start: float, seconds: float, **more: object) -> dict[str, object]:
    return {"worker": worker, "call": call, "start": BEGAN + start, "end": BEGAN + start + seconds, **more}


def keep_run(
    folder: Path, *, steps: int = 5, generate: Mapping[str, float] | None = None, cold: float = 5.0, **about: object
) -> Path:
    """A run at staleness 1 with two leases a step on each generator, of so many seconds each and .5 for the weights;
    `cold` more of the first lease. An update takes 1 s, a verdict .25, a step 4 s."""
    generate = generate or {"fast": 1.0, "slow": 3.0}
    folder.mkdir(parents=True)
    spans = [span("trainer", "train", 0, 9.0), span("fast", "evaluate", 5, 2.0), span("judge", "verify", 7.0, 4.0)]
    metrics = []
    for step in range(steps):
        at = 20.0 + 4 * step
        for worker, seconds in generate.items():
            for lease in range(2):
                late = cold if step == lease == 0 else 0.0
                loading = 0.5 if lease == 0 else 0.0
                spans.append(span(worker, "generate", at + lease, seconds + late + loading, loading=loading))
        spans += [span("judge", "verify", at + 2 + 0.3 * n, 0.25) for n in range(2 * len(generate))]
        spans += [span("trainer", "train", at + 3, 1.0), span("trainer", "publish", at + 4, 0.125)]
        figures = {"reward/mean": 0.5, "perf/step_seconds": 4.0 + 8 * (step == 0), "perf/log_seconds": 0.0625}
        figures |= {"sync/bytes": 1e8, "sync/ratio": 10.0}
        metrics.append({"step": step + 1, "time": int(1000 * BEGAN), **figures})
    spans.append(span("trainer", "train", 20 + 4 * steps + 3, 30.0))  # an export
    lines = [{"session": BEGAN}, *sorted(spans, key=lambda one: str(one["end"]))]
    (folder / "timeline.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (folder / "about.json").write_text(json.dumps({"status": "finished", **about}))
    (folder / "config.yaml").write_text(whole_text(TrainConfig()))
    return folder


def keep_version(run: Path, dtype: str, size: int) -> None:
    """A version of the run, of which the manifest alone tells anything."""
    (folder := run / "new").mkdir()
    (folder / "config.json").write_text("{}")
    manifest = VersionManifest(step=1, digest="", base=None, dtype=dtype, bytes=size, changed=1.0)
    store.write_folder(weights_uri(str(run), 1), folder, meta=manifest.model_dump(mode="json"), move=True)
