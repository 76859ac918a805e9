import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import imageshards as ims
from imageshards.errors import UserError, naming_flags
from tests.conftest import REPOSITORY
from tests.support.errors import refused
from trainer.commands import parse_config
from trainer.strengths import LIGHT, NAMED, NONE, STRONG, Augment, shown


def _parsed(flags: str) -> Any:
    return parse_config(["--data", "d", *flags.split()]).read.augment


def test_flags_replace_numbers_of_the_named_augmentation() -> None:
    assert ims.Augment is Augment
    assert [_parsed(f"--augment {name}") for name in NAMED] == [NONE, LIGHT, STRONG]
    assert _parsed("") == _parsed(
        "--augment none --crop 0.5,1 --ratio 0.75,1.3333333333333333 --flip 0.5"
    )
    imagenet = Augment(crop=(0.08, 1), ratio=(3 / 4, 4 / 3), flip=0.5)
    assert _parsed("--crop 0.08,1") == imagenet == Augment.of("light", crop=(0.08, 1))
    unmixed = _parsed("--augment strong --mixup 0 --cutmix 0")
    assert unmixed == dataclasses.replace(STRONG, mixup=0, cutmix=0, mix=1) and not unmixed.mixes
    assert _parsed("--augment strong --mixup 0").cutmix == 1


def test_names_and_numbers_are_shown_to_people() -> None:
    assert list(map(str, NAMED.values())) == [*NAMED]
    assert str(Augment(crop=(0.08, 1), flip=0.5)) == "crop 0.08,1 flip 0.5"
    assert str(Augment.of("light", ratio=(3 / 4, 4 / 3), flip=0)) == "crop 0.5,1 ratio 0.75,1.333"


def test_the_guide_lists_every_number_of_light_and_strong() -> None:
    page = (REPOSITORY / "docs" / "guides" / "train.md").read_text()
    for field in dataclasses.fields(Augment):
        light, strong = (shown(getattr(one, field.name)) for one in (LIGHT, STRONG))
        assert f"| `{field.name}` | {light} | {strong} |" in page


def test_equal_numbers_of_any_kind_are_the_same_augmentation() -> None:
    given: Any = [np.float64(0.5), np.int64(1)]
    assert Augment(crop=given, flip=1) == Augment(crop=(0.5, 1.0), flip=1.0)
    assert hash(Augment(crop=given)) and type(Augment(crop=given).crop[1]) is float


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--augment medium", "--augment received 'medium'; expected one of none, light, strong."),
        ("--crop 1,0.5", "--crop received 1.0,0.5; expected two numbers, the least and"),
        ("--crop 0,1", "--crop received 0.0; expected more than 0 and at most 1."),
        ("--ratio x,1", "--ratio received 'x,1'; expected two numbers, for example 0.5,1."),
        ("--flip 1.5", "--flip received 1.5; expected 0 to 1."),
        ("--mixup nan", "--mixup received nan; expected 0 to 10."),
        ("--mix 0.5", "--mix received 0.5 without --mixup; expected --mixup, or no --mix."),
        ("--augment strong --erase 0 --erase_ratio 1", "--erase_ratio received 1.0 without --er"),
        (
            "--augment none --augment_on device",
            "--augment_on received 'device' with --augment none",
        ),
    ],
)
def test_a_mistake_is_one_sentence(flags: str, sentence: str) -> None:
    with naming_flags():
        with pytest.raises(UserError) as caught:
            _parsed(flags)
        assert sentence in str(caught.value)


def test_mistakes_in_python_name_arguments() -> None:
    wrong: dict[str, Any] = {"crop": 0.5, "flip": "often", "noise": math.inf, "erase_ratio": 0.5}
    for argument, value in wrong.items():
        with refused(argument, f"{argument} received"):
            Augment(**{argument: value})
