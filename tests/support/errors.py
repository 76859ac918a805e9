"""What a user's mistake is asserted by: the argument and the kind of error, not its wording."""

import contextlib

import pytest

from imageshards.errors import UserError


@contextlib.contextmanager
def refused(argument, *words, kind=UserError):
    """Expects one sentence about `argument`, an option without dashes ("" for none, None for any).

    `words` are values of the test that the sentence must name, such as a path or a class.
    """
    with pytest.raises(kind) as caught:
        yield caught
    said = str(caught.value)
    assert argument in (caught.value.argument, None), said
    assert all(word in said for word in words) and "\n" not in said, said
