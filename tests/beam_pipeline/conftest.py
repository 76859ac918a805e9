"""What tests of inputs and of images share."""

import os
import pathlib

import pytest


@pytest.fixture
def nobody_closes(tmp_path):
    """A function that takes away the rights to files and folders; root becomes nobody."""

    def close(*names: str) -> None:
        for name in names:
            if not (tmp_path / name).exists():
                (tmp_path / name).mkdir()
            (tmp_path / name).chmod(0)
            closed.append(tmp_path / name)
        if was_root:
            os.seteuid(65534)

    closed: list[pathlib.Path] = []
    was_root = os.geteuid() == 0
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o077:  # as pytest makes its folders, also those of xdist
            folder.chmod(0o755)
    yield close
    if was_root:
        os.seteuid(0)
    for folder in closed:
        folder.chmod(0o755)
