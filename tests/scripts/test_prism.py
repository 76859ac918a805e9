"""`make prism`: Prism of Beam's version, copied or built once."""

import importlib.metadata
import os
import pathlib

import pytest

from scripts import prism

pytestmark = pytest.mark.process

BEAM = importlib.metadata.version("apache-beam")

# What `go` answers: its folder, the version of a program there, and what it installs.
GO = """#!/bin/sh
case "$1" in
env) echo {folder} ;;
version) printf '\\tmod\\tgithub.com/apache/beam/sdks/v2\\t{version}\\th1:x\\n' ;;
install) echo built > "$GOBIN/prism"; chmod +x "$GOBIN/prism" ;;
esac
"""


@pytest.fixture(autouse=True)
def programs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder at the head of the PATH; nothing is in the cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.delenv("IMAGESHARDS_PRISM", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


@pytest.mark.parametrize(("version", "expected"), [(f"v{BEAM}", "ready\n"), ("v2.1.0", "built\n")])
def test_prism_is_made_ready_once(programs, tmp_path, version, expected):
    for name, text in (("go", GO.format(folder=tmp_path, version=version)), ("prism", "ready\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    with pytest.raises(prism.PrismError, match="make prism"):
        prism.find_prism()
    found = prism.prepare_prism()
    assert found.read_text() == expected and found.name == f"prism-v{BEAM}"
    (programs / "go").unlink()
    assert prism.prepare_prism() == prism.find_prism() == found


def test_where_prism_cannot_be_had_one_line_says_what_is_missing(monkeypatch, programs, capsys):
    monkeypatch.setenv("PATH", str(programs))
    assert prism.main() == 2
    said = capsys.readouterr().err
    assert "Go is not on the PATH; install Go" in said and said.count("\n") == 1
