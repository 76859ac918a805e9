"""Hooks for pytest that run the code blocks of the documentation (tests/documentation)."""

from __future__ import annotations

import pytest
from sybil.integration.pytest import SybilItem

from tests.documentation.collection import documentation, is_of_a_guide

pytest_collect_file = documentation.pytest()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks code blocks as `process`, and those that run commands of a guide as `long`."""
    if isinstance(item, SybilItem):
        item.add_marker(pytest.mark.process)
        if is_of_a_guide(item.example):
            item.add_marker(pytest.mark.long)
