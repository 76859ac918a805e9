"""What a user's mistake is asserted by: the argument and the kind of error, not its wording."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from imageshards.errors import UserError


@contextlib.contextmanager
def refused(
    argument: str, *words: str, kind: type[UserError] = UserError
) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expects an error about `argument`, the name of an option without dashes ("" for none).

    `words` are values of the test that the sentence must name, such as a path or a class.
    """
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.argument == argument, str(caught.value)
    for word in words:
        assert word in str(caught.value)
