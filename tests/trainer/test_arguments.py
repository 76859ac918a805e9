"""Sentences of the commands, as somebody reads them who called a function."""

import pytest

from imageshards.errors import StorageError, UserError
from trainer.arguments import names_arguments


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("--batch_size received 3; expected 4.", "batch_size received 3; expected 4."),
        ("--data received 'x', see --data 'x'.", "path received 'x', see path='x'."),
        (
            "give it by --image_size, as --image_size 224.",
            "give it by image_size, as image_size=224.",
        ),
        ("or choose --augment light.", "or choose augment='light'."),
        ("leave classes out by --classes a,b.", "leave classes out by classes a,b."),
        ("its name by --validation_split.", "its name by split."),
        ("by --feature_map image=FEATURE, or", "by feature_map={'image': 'FEATURE'}, or"),
        (
            "for example --data a,b --mix a=0.7,b=0.3.",
            "for example path a,b mix={'a': 0.7, 'b': 0.3}.",
        ),
        ("--where 'a=b' left nothing", "where='a=b' left nothing"),
        ("(see --label_offset)", "(see label_offset)"),
        (
            "run imageshards build --num_shards 4",
            "run imageshards build --num_shards 4",
        ),
    ],
)
def test_flags_become_arguments(told: str, expected: str) -> None:
    @names_arguments
    def refuse() -> None:
        raise StorageError(told)

    with pytest.raises(StorageError) as caught:
        refuse()
    assert str(caught.value) == expected


def test_results_and_causes_pass() -> None:
    @names_arguments
    def halve(number: int) -> float:
        try:
            return 1 / number
        except ZeroDivisionError as e:
            raise UserError("--steps received 0.") from e

    assert halve(2) == 0.5 and halve.__name__ == "halve"
    with pytest.raises(UserError, match="^steps received 0") as caught:
        halve(0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
