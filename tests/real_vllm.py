"""A real vLLM on the CPU, where an environment has one: python -m tests.bench.vllm makes it."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl.sampling.server import Server, ServerError
from tests.conftest import free_port
from tests.processes import until

OWN = {
    "OMP_NUM_THREADS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
PROCESSED = ("--logprobs-mode", "processed_logprobs")


@contextmanager
def serving(python: str, model: str, log: Path, options: tuple[str, ...] = PROCESSED) -> Iterator[str]:
    """The address of a server that began with the model in this folder, by the Python that has vLLM."""
    port = free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--enforce-eager"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "128", *options]
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            Server(address).open()
        except ServerError:
            return False
        return True

    with log.open("w") as out:
        process = subprocess.Popen(command, env={**os.environ, **OWN}, stdout=out, stderr=out, start_new_session=True)
        try:
            until(answers, 600, every=0.5)
            yield address
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its engine and workers too
            process.wait()
