import pickle
import traceback

import pytest

from imageshards.errors import (
    Arg,
    ImageError,
    OutputError,
    StorageError,
    UserError,
    names_arguments,
    naming_flags,
    user_error_in,
)

SENTENCE = "--input 'a b' holds no image; expected files."


def _kinds(base):
    own = [kind for kind in base.__subclasses__() if kind.__module__ == base.__module__]
    return [base.__name__, *(name for kind in own for name in _kinds(kind))]


def wrapped(cause):
    error = RuntimeError("bundle failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        UserError(f"{SENTENCE} [while running 'List/ListingTasks']"),
        wrapped(wrapped(OutputError(SENTENCE))),
        RuntimeError(
            'Pipeline failed: Traceback (most recent call last):\n  File "x.py", line 1\n'
            f"imageshards.errors.UserError: {SENTENCE} [while running 'List/ListTask']\n\n"
            "During handling of the above exception ...\n"
            f"OutputError: {SENTENCE}\nNote: more"
        ),
    ],
    ids=["a step", "causes", "texts"],
)
def test_user_error_in_finds_the_sentence(error):
    assert str(user_error_in(error)) == SENTENCE


def test_each_kind_of_error_is_found_in_text():
    """Whoever adds a kind is told here that runners may hand it on as text only."""
    for name in _kinds(UserError):
        error = RuntimeError(f"imageshards.errors.{name}: {SENTENCE}")
        assert str(user_error_in(error)) == SENTENCE, name


def test_internal_errors_and_circular_causes_are_no_user_errors():
    one, two = RuntimeError("UserErrors are errors: of users"), KeyError()
    assert user_error_in(one) is None
    one.__cause__, two.__cause__ = two, one
    assert user_error_in(one) is None
    # Nor is an error in the handling of a mistake.
    try:
        try:
            raise UserError(SENTENCE)
        except UserError:
            raise KeyError("a fault of ours")  # noqa: B904  # as a bug would
    except KeyError as e:
        assert e.__context__ is not None and user_error_in(e) is None
        assert user_error_in(RuntimeError(traceback.format_exc())) is None


def test_an_image_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(ImageError("truncated", "early")))
    assert (error.code, error.message, str(error)) == ("truncated", "early", "truncated: early")


@pytest.mark.parametrize(
    ("error", "flags", "arguments"),
    [
        (StorageError(argument="seed", received="3"), "--seed received 3.", "seed received 3."),
        (StorageError(argument="data", received="x"), "--data received x.", "path received x."),
        (StorageError(argument="DIR", received="x"), "DIR received x.", "path received x."),
        (StorageError("no room", remedy="give " + Arg("output", "a b") + " or " + Arg("data")),
         "no room; give --output 'a b' or --data.", "no room; give output='a b' or path."),
        (StorageError("odd", expected="less", remedy=Arg("force", True) + ""),
         "odd; expected less: --force.", "odd; expected less: force=True."),
    ],
)  # fmt: skip
def test_an_error_names_flags_in_a_command_and_arguments_in_python(error, flags, arguments):
    @names_arguments(data="path")
    def refuse():
        raise error from cause

    cause = KeyError("why")
    with pytest.raises(StorageError) as caught:
        refuse()
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value))) == arguments
    with naming_flags():
        assert str(user_error_in(caught.value)) == flags
    assert caught.value.__cause__ is cause and refuse.__name__ == "refuse"
