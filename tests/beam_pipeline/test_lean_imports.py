"""Packages are hidden inside a block only, and PyArrow works without pandas until it needs it."""

import importlib
import subprocess
import sys

import pytest

from beam_pipeline.lean_imports import without


def test_a_package_is_hidden_inside_a_block_unless_it_is_in_use(tmp_path, monkeypatch):
    for name in ("seldom", "seldomly"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with without("seldom", "json"):
        for name in ("json", "seldomly"):
            importlib.import_module(name)
        with pytest.raises(ModuleNotFoundError, match="seldom is hidden"):
            importlib.import_module("seldom")
    importlib.import_module("seldom")


@pytest.mark.process
def test_pyarrow_imports_pandas_only_when_it_makes_a_data_frame():
    pytest.importorskip("pandas")
    code = (
        "import sys\n"
        "from beam_pipeline.lean_imports import pyarrow_without_pandas\n"
        "pyarrow_without_pandas()\n"
        "import pyarrow as pa\n"
        "table = pa.table({'n': [1, None]})\n"
        "assert 'pandas' not in sys.modules\n"
        "assert table.to_pandas().n.sum() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
