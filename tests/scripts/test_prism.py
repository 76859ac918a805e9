"""`make prism`: Prism of Beam's version, copied or built once."""

from __future__ import annotations

import importlib.metadata
import os

import pytest

from scripts import prism

pytestmark = pytest.mark.process

BEAM = importlib.metadata.version("apache-beam")

# What `go` answers: its folder, the version of a program there, and what it installs.
GO = """#!/bin/sh
case "$1" in
env) echo {folder} ;;
version) printf '\\tmod\\tgithub.com/apache/beam/sdks/v2\\t{version}\\th1:x\\n' ;;
install) echo "$2" >&2; {install} ;;
esac
"""


@pytest.mark.parametrize(
    ("version", "install", "expected"),
    [
        (f"v{BEAM}", "exit 1", "ready\n"),
        ("v2.1.0", 'echo built > "$GOBIN/prism"; chmod +x "$GOBIN/prism"', "built\n"),
        ("v2.1.0", "exit 1", r"go install failed \(.*@v"),
    ],
    ids=["copied", "built", "failed"],
)
def test_prism_is_made_ready_once(monkeypatch, tmp_path, version, install, expected):
    monkeypatch.delenv("IMAGESHARDS_PRISM", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    (tmp_path / "bin").mkdir()
    for name, text in {
        "go": GO.format(folder=tmp_path, version=version, install=install),
        "prism": "ready\n",
    }.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    with pytest.raises(prism.PrismError, match="make prism"):
        prism.find_prism()
    if "failed" in expected:
        with pytest.raises(prism.PrismError, match=expected):
            prism.prepare_prism()
        return
    found = prism.prepare_prism()
    assert found.read_text() == expected and found.name == f"prism-v{BEAM}"
    (tmp_path / "bin" / "go").unlink()
    assert prism.prepare_prism() == prism.find_prism() == found


def test_where_prism_cannot_be_had_one_line_says_what_is_missing(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("IMAGESHARDS_PRISM", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert prism.main() == 2
    said = capsys.readouterr().err
    assert "Go is not on the PATH; install Go" in said and said.count("\n") == 1
    monkeypatch.setenv("IMAGESHARDS_PRISM", str(tmp_path / "absent"))
    with pytest.raises(prism.PrismError, match="IMAGESHARDS_PRISM received .*absent"):
        prism.prepare_prism()
