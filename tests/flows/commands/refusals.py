"""A command in this process that is refused."""

import pytest

from flows.cli import main


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of what a command says that ends with exit code 2."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said.splitlines()[-1]
