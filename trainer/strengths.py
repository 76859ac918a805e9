"""Describes the augmentation by numbers: `ims.Augment`, and the names for three of its values."""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, Any, Final

from imageshards.commands.options import Option, check_options, refuse_idle
from imageshards.errors import Arg, UserError

_share = functools.partial(Option, least=0, most=1)
_alpha = functools.partial(Option, least=0, most=10)

# Numbers that change nothing unless one of the named numbers is above 0.
_NEEDS: Final = {
    "erase_area": ("erase",),
    "erase_ratio": ("erase",),
    "mix": ("mixup", "cutmix"),
}
NO_MIXING = Arg("mixup", 0, python="an ims.Augment with mixup=0") + " and " + Arg("cutmix", 0)


@dataclasses.dataclass(frozen=True)
class Augment:
    """The strengths of the random changes of training pictures, and of the mixing of pairs.

    Without arguments nothing changes. `imageshards train --help` and the guide "Train a model"
    describe each number. The usual recipe for ImageNet is

        ims.Augment(crop=(0.08, 1), ratio=(3 / 4, 4 / 3), flip=0.5)

    Raises:
        UserError: A number is out of range, or can change nothing.
    """

    # fmt: off
    crop: Annotated[tuple[float, float], Option(
        "least and greatest area of a random crop, as a share of the largest crop with an allowed "
        "aspect; 1,1 keeps that one, around the centre", above=0, most=1)] = (1.0, 1.0)
    ratio: Annotated[tuple[float, float], Option(
        "least and greatest aspect of the crop, as a multiple of the aspect of the model's "
        "pictures", least=0.01, most=100)] = (1.0, 1.0)
    flip: Annotated[float, _share("probability of a flip from left to right")] = 0.0
    rotate: Annotated[float, Option(
        "greatest angle of the rotation in degrees, in both directions", least=0, most=90)] = 0.0
    brightness: Annotated[float, _share("factors from 1 - X to 1 + X")] = 0.0
    contrast: Annotated[float, _share("factors from 1 - X to 1 + X")] = 0.0
    saturation: Annotated[float, _share("factors from 1 - X to 1 + X")] = 0.0
    noise: Annotated[float, Option(
        "greatest standard deviation of Gaussian noise, in grey levels of 0 to 255",
        least=0, most=255)] = 0.0
    erase: Annotated[float, _share("probability that a rectangle is erased")] = 0.0
    erase_area: Annotated[tuple[float, float], Option(
        "least and greatest area of the erased rectangle, as a share of the picture",
        above=0, most=1)] = (0.02, 1 / 3)
    erase_ratio: Annotated[float, Option(
        "least height / width of the erased rectangle; the greatest is 1 / X",
        least=0.01, most=1)] = 0.3
    mixup: Annotated[float, _alpha(
        "alpha of MixUp, which draws shares from Beta(X, X); 0 for never")] = 0.0
    cutmix: Annotated[float, _alpha(
        "alpha of CutMix; 0 for never. With --mixup, each is as likely as the other")] = 0.0
    mix: Annotated[float, Option(
        "share of the pairs that are mixed, with --mixup or --cutmix", above=0, most=1)] = 1.0
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # Equal numbers are then equal as JSON values, too, whatever kind of number they were.
            plain = tuple(map(float, value)) if isinstance(value, tuple | list) else float(value)
            object.__setattr__(self, field.name, plain)
        for name, needs in _NEEDS.items():
            if not any(getattr(self, need) for need in needs):
                refuse_idle(self, name, "without " + Arg(needs[0]), Arg(needs[0]))

    def __str__(self) -> str:
        """Returns the name of the augmentation, or its numbers that change something."""
        return next((name for name, known in NAMED.items() if self == known), self.changes)

    @staticmethod
    def of(base: str | Augment, **changes: Any) -> Augment:
        """Returns an augmentation with other numbers, for example `of("strong", rotate=0)`.

        Args:
            base: `none`, `light`, `strong`, or an augmentation.
            **changes: Number by name.

        Raises:
            UserError: There is no such name, or a number is out of range.
        """
        known = base if isinstance(base, Augment) else NAMED.get(str(base))
        if known is None:
            expected = f"one of {', '.join(NAMED)}"
            raise UserError(argument="augment", received=repr(base), expected=expected)
        numbers = dataclasses.asdict(known) | changes
        # `strong` without MixUp and CutMix has no pairs to mix either.
        idle = {name for name, needs in _NEEDS.items() if not any(numbers[n] for n in needs)}
        kept = {name: n for name, n in numbers.items() if name in changes or name not in idle}
        return Augment(**kept)

    def as_json(self) -> dict[str, Any]:
        """Returns the numbers by name, with lists for ranges."""
        numbers = dataclasses.asdict(self).items()
        return {name: list(n) if isinstance(n, tuple) else n for name, n in numbers}

    @property
    def changes(self) -> str:
        """Returns the numbers that change something, for people."""
        fields = (field for field in dataclasses.fields(self))
        values = {
            f.name: getattr(self, f.name) for f in fields if getattr(self, f.name) != f.default
        }
        return " ".join(f"{name} {shown(value)}" for name, value in values.items())

    @property
    def changes_colors(self) -> bool:
        """Returns whether pixels change besides their places."""
        colors = self.brightness or self.contrast or self.saturation
        return bool(colors or self.noise or self.erase)

    @property
    def mixes(self) -> bool:
        """Returns whether pairs are mixed."""
        return bool(self.mixup or self.cutmix)


def shown(value: float | tuple[float, ...]) -> str:
    """Returns a number or a range as its flag takes it, rounded to four digits."""
    return ",".join(f"{n:.4g}" for n in (value if isinstance(value, tuple) else (value,)))


NONE = Augment()
LIGHT = Augment(crop=(0.5, 1.0), ratio=(3 / 4, 4 / 3), flip=0.5)
STRONG = dataclasses.replace(
    LIGHT,
    crop=(0.08, 1.0),
    rotate=15.0,
    brightness=0.3,
    contrast=0.3,
    saturation=0.3,
    noise=10.0,
    erase=0.25,
    mixup=0.5,
    cutmix=1.0,
    mix=0.5,
)
NAMED: Final = {"none": NONE, "light": LIGHT, "strong": STRONG}
