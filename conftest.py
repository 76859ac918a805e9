"""The documentation is part of the tests: its code blocks are run (tests/documentation)."""

from __future__ import annotations

import pytest
from sybil.integration.pytest import SybilItem

from tests.documentation.collection import documentation

pytest_collect_file = documentation.pytest()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Blocks start processes."""
    if isinstance(item, SybilItem):
        item.add_marker(pytest.mark.process)
