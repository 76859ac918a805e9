"""Defines the options of the plan of a build."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated

from beam_pipeline import option_texts
from beam_pipeline.option_texts import invalid
from imageshards.bounds import MAX_SHARDS
from imageshards.commands.command_line import names_or_file
from imageshards.commands.options import Option, check_options
from imageshards.errors import Arg
from imageshards.manifest import SPLIT_NAME
from imageshards.text import composed


def is_split_name(name: str) -> bool:
    """Returns whether a split may have this name, which becomes part of file names."""
    return SPLIT_NAME.fullmatch(name) is not None


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """Options of the plan: splits, shards and the order of classes.

    Attributes:
        num_shards: Split name → shards. The key `*` means every split. Without an entry the number
            follows from `shard_mb`.
        pinned_classes: Classes of the dataset that is replaced, by id; new classes follow.
    """

    # fmt: off
    splits: Annotated[Mapping[str, float], Option(
        "fraction of the images for each split. A salted hash of the key, or of the value of "
        "--group_column, selects the split, so adding images never moves old images. A split given "
        "by a folder or a column wins. Records of a dataset keep their splits unless this flag is "
        "given (default: the splits of a dataset among the inputs, else "
        "train=0.9,validation=0.1)", metavar="NAME=F,...",
        parse=functools.partial(option_texts.parse_pairs, "splits", float),
        )] = dataclasses.field(default_factory=lambda: {"train": 0.9, "validation": 0.1})
    stratify: Annotated[bool, Option(
        "draw --splits by class: of each class, a split gets its fraction, rounded up or down. A "
        "group, or an image with several labels, counts under its rarest label, and a group stays "
        "in one split. Images with a given split keep it. Added images may move old ones")] = False
    salt: Annotated[str, Option(
        "text that enters all hashes; another salt gives other splits and another "
        "order")] = "imageshards"
    num_shards: Annotated[Mapping[str, int], Option(
        "number of shards, for each split or for all splits (default: from --shard_mb, but at "
        "least 16 if each shard then holds 32 records or more)",
        parse=option_texts.parse_num_shards,
        metavar="NAME=N,...|N")] = dataclasses.field(default_factory=dict)
    shard_mb: Annotated[float, Option(
        "target size of a shard in MB (10^6 bytes); the build estimates record sizes from a sample "
        "of images (default: 128)",
        above=0, metavar="MB")] = 128.0
    class_names: Annotated[tuple[str, ...] | None, Option(
        "class names in the order of their ids: a list with commas, or a text file with one name "
        "per line. In a list, write a comma inside a name as \\,. A label must be one of these "
        "names or a class id (default: sorted names, whole numbers first; --overwrite keeps the "
        "old ids)",
        group="input", metavar="A,B|FILE",
        parse=functools.partial(names_or_file, "class_names"))] = None
    pinned_classes: tuple[str, ...] = ()
    allow_one_class: Annotated[bool, Option(
        "accept an input with a single class", group="input")] = False
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        # Unicode has two forms of é, so class names are compared in their composed form.
        if self.class_names is not None:
            object.__setattr__(self, "class_names", tuple(map(composed, self.class_names)))
        pinned = dict.fromkeys(map(composed, self.pinned_classes))
        object.__setattr__(self, "pinned_classes", tuple(pinned))
        for name, fraction in self.splits.items():
            if not is_split_name(name):
                raise invalid("splits", f"the name {name!r}", "letters, digits and underscores")
            if not 0 < fraction <= 1:
                raise invalid("splits", f"{name}={fraction}", "a fraction above 0 and at most 1")
        total = sum(self.splits.values())
        if abs(total - 1) > 1e-9:  # 0.7 + 0.2 + 0.1 is not exactly 1
            expected = "1, for example train=0.9,validation=0.1"
            raise invalid("splits", f"fractions that sum to {total:g}", expected)
        if self.stratify and len(self.splits) == 1:
            received = "one split only, " + Arg("splits", f"{min(self.splits)}=1")
            raise invalid("stratify", received, "several splits to draw", "leave it out")
        for name, count in self.num_shards.items():
            if not 1 <= count <= MAX_SHARDS:
                given = str(count) if name == "*" else f"{name}={count}"
                raise invalid("num_shards", given, f"1 to {MAX_SHARDS}")
        if self.class_names is not None and len(set(self.class_names)) != len(self.class_names):
            twice = min(c for c in self.class_names if self.class_names.count(c) > 1)
            raise invalid("class_names", f"{twice!r} twice", "each class once")
