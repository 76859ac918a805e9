"""Hooks for pytest that run the code blocks of the documentation (tests/documentation)."""

from __future__ import annotations

import pytest
from sybil.integration.pytest import SybilItem

from tests.documentation.collection import documentation

pytest_collect_file = documentation.pytest()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks code blocks as `process`, because the blocks start processes."""
    if isinstance(item, SybilItem):
        item.add_marker(pytest.mark.process)
