"""The recipes of docs/clusters.md, run as far as this machine can: all give workers with rlvf's tags."""

import getpass
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client

from infra.cluster.placement import offers

PAGE = Path(__file__).parents[3] / "docs" / "clusters.md"


def recipe(name: str, **changes: str) -> str:
    """A code block of the page, with some text of it replaced."""
    (code,) = re.findall(rf"```python\n# recipe: {name}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for old, new in changes.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


@pytest.fixture
def dask_settings() -> Any:
    """A recipe sets Dask's configuration for the whole process."""
    with dask.config.set({}):
        before = dask.config.config.copy()
        yield
        dask.config.config.clear()
        dask.config.config.update(before)


@pytest.fixture
def ssh(tmp_path: Path) -> Any:
    """A server of our own on the loopback interface: the options to connect to it."""
    asyncssh = pytest.importorskip("asyncssh", reason="needs asyncssh: install the extra 'dev'")
    sshd = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if sshd is None:
        pytest.skip("needs an SSH server: apt install openssh-server")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    host_key, key = tmp_path / "host", tmp_path / "key"
    for each in (host_key, key):
        made = asyncssh.generate_private_key("ssh-ed25519")
        made.write_private_key(str(each))
        made.write_public_key(f"{each}.pub")
        each.chmod(0o600)
    (tmp_path / "authorized").write_text((tmp_path / "key.pub").read_text())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {host_key}\nAuthorizedKeysFile {tmp_path}/authorized\n"
        f"PidFile {tmp_path}/pid\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n"
    )
    with (tmp_path / "sshd.log").open("wb") as log:
        server = subprocess.Popen([sshd, "-D", "-e", "-f", str(tmp_path / "config")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 10
        while not _listens(port):
            assert server.poll() is None, (tmp_path / "sshd.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield {"port": port, "username": getpass.getuser(), "client_keys": [str(key)], "known_hosts": None}
    finally:
        server.terminate()
        server.wait(90)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.usefixtures("dask_settings")
def test_ssh(ssh: dict[str, Any]) -> None:
    code = recipe(
        "ssh",
        **{
            '["head", "gpu1", "gpu2"]': '["127.0.0.1", "127.0.0.1"]',
            "connect_options={}": f"connect_options={ssh!r}, remote_python={sys.executable!r}",
            '"port": 8786': '"port": 0, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"',
        },
    )
    names: dict[str, Any] = {}
    exec(code, names)
    try:
        with Client(names["cluster"].scheduler_address, set_as_default=False) as client:
            deadline = time.monotonic() + 20
            while not offers(client):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            (worker,) = offers(client)
            assert worker.resources == {"CUDA": 1, "GENERATOR": 1}
            settings = client.run_on_scheduler(lambda: dask.config.get("distributed.scheduler.allowed-failures"))
            assert settings == 0
            profiled = client.run(lambda dask_worker: "profile" in dask_worker.periodic_callbacks)
            assert set(profiled.values()) == {sys.version_info >= (3, 12)}
            assert client.submit(sum, [1, 2], resources={"GENERATOR": 1}).result(20) == 3
    finally:
        names["cluster"].close()


@pytest.mark.usefixtures("dask_settings")
def test_slurm() -> None:
    before = signal.getsignal(signal.SIGINT)
    pytest.importorskip("dask_jobqueue", reason="needs dask-jobqueue: install the extra 'dev'")
    signal.signal(signal.SIGINT, before)  # its import takes Ctrl-C from the whole process
    names: dict[str, Any] = {}
    local = 'scheduler_options={"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}, walltime='
    exec(recipe("slurm", **{"cluster.scale(jobs=4)": "", "walltime=": local}), names)
    try:
        script = names["cluster"].job_script()
    finally:
        names["cluster"].close()
    assert "#SBATCH --gres=gpu:1" in script
    assert "export DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=" in script
    words = shlex.split(script.splitlines()[-1] if "dask" in script.splitlines()[-1] else script.splitlines()[-2])
    assert words[len(words) - words[::-1].index("--resources")] == "CUDA=1 GENERATOR=1"
    assert words[len(words) - words[::-1].index("--nthreads")] == "1"  # the last one counts
    assert words[len(words) - words[::-1].index("--memory-limit")] == "0"


def test_kubernetes() -> None:
    pytest.importorskip("dask_kubernetes", reason="needs dask-kubernetes, which is not in the extra 'dev': 14 packages")
    names: dict[str, Any] = {}
    exec(recipe("kubernetes").partition("cluster = KubeCluster")[0], names)
    (container,) = names["spec"]["spec"]["worker"]["spec"]["containers"]
    command = container["args"]
    assert command[command.index("--resources") + 1] == "CUDA=1 TRAINER=1"
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    (scheduler,) = names["spec"]["spec"]["scheduler"]["spec"]["containers"]
    assert {"name": "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "value": "0"} in scheduler["env"]
