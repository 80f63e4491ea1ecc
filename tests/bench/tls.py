"""What certificates cost a call on this machine's own cluster: medians, over TCP and over TLS, in turns.

python tests/bench/tls.py
"""

import statistics
import tempfile
import time
from pathlib import Path

from distributed import Client, Security

from infra.cluster.cluster import local_cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.security.tls import temporary_security

CALLS = 200
BYTES = 1_000_000
TURNS = 3


def same(value: bytes) -> bytes:
    return value


def seconds(client: Client, value: bytes) -> float:
    """Of one call at a time that takes the value there and back."""
    began = time.perf_counter()
    client.submit(same, value, resources={"VERIFIER": 1}, pure=False).result()
    return time.perf_counter() - began


def main() -> None:
    taken: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as logs:
        for _ in range(TURNS):
            for name, security in (("tcp", Security(require_encryption=False)), ("tls", temporary_security())):  # type: ignore[no-untyped-call]
                config = ClusterConfig(threads=1, device="cpu")
                with local_cluster(config, security, log_dir=Path(logs)) as client:
                    for size in (0, BYTES):
                        taken.setdefault((name, size), []).extend(seconds(client, bytes(size)) for _ in range(CALLS))
    for (name, size), of in sorted(taken.items()):
        print(f"{name}, {size:>9,} bytes there and back: {statistics.median(of) * 1e3:.2f} ms a call")


if __name__ == "__main__":
    main()
