"""An algorithm that a run from elsewhere brings is code, wherever its file lies and whatever its path looks like."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flows.start.trust import NotTrustedError, trusted
from tests.flows.start.elsewhere import saved

MINE = "from rl.algorithms.reinforce import Reinforce\nclass Mine(Reinforce): pass\n"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a file that a web server here serves."""
    (tmp_path / "mine.py").write_text(MINE)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path))) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/mine.py"
        server.shutdown()
        serving.join()


def test_a_name_like_a_reward_models_is_no_way_round(
    elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reward-model:mine.py").write_text(MINE)
    run = saved(elsewhere, algorithm="reward-model:mine.py:Mine")
    with pytest.raises(NotTrustedError, match=r"would use its algorithm reward-model:mine\.py:Mine"):
        trusted(run)


def test_one_behind_an_address_is_known_by_its_content(elsewhere: str, tmp_path: Path, served: str) -> None:
    run = saved(elsewhere, algorithm=f"{served}:Mine")
    with pytest.raises(NotTrustedError, match=r"was never trained from here, .* would use its algorithm http"):
        trusted(run)
    trusted(run, trust=True)
    trusted(run)
    (tmp_path / "mine.py").write_text("import os\n" + MINE)
    with pytest.raises(NotTrustedError, match="brings something else than it did here before"):
        trusted(run)
