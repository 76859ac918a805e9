"""`make install-check`: only a package index that cannot be reached is no failure."""

from __future__ import annotations

import sys

import pytest

from scripts import install_check

pytestmark = pytest.mark.process

FAILING = (sys.executable, "-c", "import sys; sys.exit('ReadTimeout while reading photos')")


def test_a_failing_command_that_speaks_of_a_timeout_fails() -> None:
    with pytest.raises(install_check.FailedError, match="ReadTimeout while reading photos"):
        install_check.call(*FAILING)
    with pytest.raises(install_check.NoIndexError):
        install_check.call(*FAILING, asks_index=True)
