"""What tests of inputs and of images share."""

import copy
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions


@pytest.fixture(autouse=True, scope="session")
def each_view_of_flags_is_parsed_once() -> Iterator[None]:
    """Beam makes a parser for each of hundreds of looks at its flags: a fifth of a small build."""
    parsed: dict[Any, PipelineOptions] = {}

    def view_as(self: Any, cls: Any) -> PipelineOptions:
        key = cls, *self._flags
        if key not in parsed:
            parsed[key] = cls(self._flags)
        view = object.__new__(cls)
        vars(view).update(vars(parsed[key]))
        for name in view._visible_option_list():
            if name not in self._all_options:
                self._all_options[name] = copy.copy(getattr(view._visible_options, name))
        view._all_options = self._all_options
        return view

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelineOptions, "view_as", view_as)
        yield


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
