"""Takes the pictures of the pages that the documentation shows, from services and a run of its own.

    python tests/bench/pages.py [--out docs/pages] [--steps 150]

Needs a Chromium (`apt install chromium`). Starts `rlvf up` and a run in a temporary home, on loopback, and
takes the form and the run on Prefect's page, the run in MLflow, and the report. That takes minutes: the policy is
warmed up.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

from infra.services.links import keyed
from infra.services.prefect_api import PrefectApi
from infra.services.prefect_server import server_password

BIN = Path(sys.executable).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = "1400,900"
PATIENCE = 20_000  # milliseconds of the page's own time: they load what they show after they have loaded


def shoot(browser: str, url: str, out: Path, size: str = SIZE, rows: tuple[int, int] | None = None) -> None:
    """Save a page as a PNG; only these rows, where others name folders of this machine."""
    with tempfile.TemporaryDirectory() as profile:
        # what fades in is a shade of grey on a busy machine
        flags = ["--force-prefers-reduced-motion", "--run-all-compositor-stages-before-draw"]
        flags += ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", f"--user-data-dir={profile}"]
        flags += [f"--window-size={size}", f"--virtual-time-budget={PATIENCE}", f"--screenshot={out}"]
        subprocess.run([browser, *flags, url], check=True, capture_output=True, timeout=180)
    if rows is not None:
        with Image.open(out) as whole:
            part = whole.crop((0, rows[0], whole.width, rows[1]))
        part.save(out)
    print(out, file=sys.stderr)


def rlvf(*words: str, home: Path) -> str:
    """What a command prints."""
    environment = {**os.environ, "RLVF_HOME": str(home)}
    done = subprocess.run([BIN / "rlvf", *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"rlvf {' '.join(words)}: {done.stderr}")
    return done.stdout


def run_on_prefect(api: PrefectApi, config: dict[str, Any]) -> tuple[str, str]:
    """Start the deployment and wait for its end; gives the ids of the deployment and of the flow run."""
    deployment = api.ask("deployments/name/rlvf/train")["id"]
    run = api.ask(f"deployments/{deployment}/create_flow_run", {"parameters": {"config": config}})["id"]
    ends = ("COMPLETED", "FAILED", "CRASHED")
    while (state := api.ask(f"flow_runs/{run}")["state"]["type"]) not in ends:
        time.sleep(2)
    if state != "COMPLETED":
        sys.exit(f"the run ended as {state}")
    return str(deployment), str(run)


def main() -> None:
    """Take them all."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--out", type=Path, default=Path("docs/pages"))
    asked.add_argument("--steps", type=int, default=150)
    asked.add_argument("--warm-up", type=Path, help="the folder `warmup` of a home that has one, to save minutes")
    given = asked.parse_args()
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"needs one of {', '.join(BROWSERS)}: apt install chromium")
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        if given.warm_up is not None:
            shutil.copytree(given.warm_up, home / "warmup")
        rlvf("up", "--detach", home=home)
        try:
            at = json.loads(rlvf("status", "--json", home=home))
            page = at["prefect"].removesuffix("/api") + "/v2"  # where the link that `rlvf up` prints leads
            config = {"run": "first", "steps": given.steps}
            deployment, flow_run = run_on_prefect(PrefectApi(at["prefect"], server_password(home)), config)
            run = home / "runs" / "first"
            tracked = json.loads((run / "result.json").read_text())["page"]["url"]
            form = keyed(home, "prefect", f"{page}/deployments/deployment/{deployment}/run")
            shoot(browser, form, given.out / "form.png", "1400,1600")
            of_run = keyed(home, "prefect", f"{page}/runs/flow-run/{flow_run}")
            shoot(browser, of_run, given.out / "run.png", rows=(0, 500))
            shoot(browser, keyed(home, "mlflow", tracked), given.out / "mlflow.png")
            shoot(browser, (run / "report.html").as_uri(), given.out / "report.png", "1000,1800", rows=(140, 1020))
        finally:
            rlvf("down", home=home)


if __name__ == "__main__":
    main()
