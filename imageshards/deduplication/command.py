"""Implements `imageshards duplicates DIR` and `imageshards.duplicates`."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from imageshards import storage
from imageshards.commands import command_line
from imageshards.commands.command_line import Parser
from imageshards.commands.options import Option, add_options, check_options
from imageshards.commands.output_folder import check_no_links, check_page_folder, output_errors
from imageshards.example import decode_record
from imageshards.manifest import DUPLICATES_NAME, PAGE_NAME, Manifest
from imageshards.manifest.file import shard_path, to_json
from imageshards.page import number, render, share, thumbnail
from imageshards.progress import ProgressLine
from imageshards.text import counted
from imageshards.tfrecord import RecordError, read_record

if TYPE_CHECKING:
    from PIL import Image

    from imageshards.deduplication.search import Twin

DEFAULT_DISTANCE = 4
JSON_NAME = "duplicates.json"
EXCLUDE_NAME = "exclude.txt"
MAX_SHOWN = 120  # pairs between splits, and as many within splits, that the page shows
_THUMB_PX = 160

_EPILOG = """\
Exit codes: 0 done, with or without duplicates; 1 failed; 2 something to fix;
130 stopped by Ctrl-C.

example:
  imageshards duplicates shards/
  imageshards build --input photos/ --output clean/ \\
      --exclude shards/duplicates/exclude.txt
"""


@dataclasses.dataclass(frozen=True)
class _Options:
    """The flags of `imageshards duplicates`."""

    # fmt: off
    distance: Annotated[int, Option(
        "largest number of bits in which the 64-bit difference hashes of near duplicates may "
        "differ, 0 to 10; pictures that differ in more bits have little in common",
        least=0, most=10, metavar="BITS")] = DEFAULT_DISTANCE
    output: Annotated[str | None, Option(
        f"folder for the page and its files (default: DIR/{DUPLICATES_NAME})",
        place=storage.absolute_place, metavar="FOLDER")] = None
    workers: Annotated[int | None, Option(
        "number of processes that decode (default: all cores)", least=1)] = None
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)


def make_parser() -> Parser:
    """Returns the parser of `imageshards duplicates`."""
    parser = command_line.dataset_parser(
        "duplicates",
        "Finds equal and nearly equal images of a dataset, within and between its\n"
        "splits. The command writes a page with the pairs side by side, a JSON file for\n"
        "programs, and a file of keys for --exclude of a build.",
        _EPILOG,
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_options(parser, _Options)
    return parser


def duplicates(
    path: str | os.PathLike[str],
    *,
    distance: int = DEFAULT_DISTANCE,
    output: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    records_root: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Finds equal and nearly equal pictures, like `imageshards duplicates`.

    Writes a page, duplicates.json and exclude.txt, a file of keys for `exclude` of a build.

        found = ims.duplicates("shards/")
        leaks = [pair for pair in found["pairs"] if pair["kept"]["split"] != pair["other"]["split"]]

    Args:
        path: The dataset, local or in a store.
        distance: The most bits of 64 in which the difference hashes of near duplicates differ.
        output: The folder for the page and its files; None for `duplicates/` in the dataset.
        workers: The number of processes that decode; None for one per core.
        records_root: A place in which the manifest of an adopted dataset may name shards.

    Returns:
        The content of duplicates.json: counts, and each image that should go with its twin.

    Raises:
        UserError: `path` has no index, an argument is wrong, or the output cannot be written.
    """
    from imageshards.deduplication.search import find_twins

    asked = _Options(distance, None if output is None else os.fspath(output), workers)
    directory, manifest = command_line.open_dataset(path, records_root)
    folder = asked.output or storage.join(directory, DUPLICATES_NAME)
    if not asked.output:  # A folder that the user names may be a link.
        check_no_links("DIR", directory, DUPLICATES_NAME)
    _prepare(folder)
    twins, undecodable = find_twins(directory, manifest, distance, workers)
    found = summary(manifest, distance, twins, undecodable)
    exclude = storage.join(folder, EXCLUDE_NAME)
    with ProgressLine(lambda: "drawing the page"):
        page = page_of(directory, manifest, twins, found, exclude)
    keys = "".join(f"{key}\n" for key in keys_to_remove(found))
    with output_errors(folder, PAGE_NAME):
        # The page comes first: `check_page_folder` of a later run takes it as the sign that
        # imageshards wrote the files beside it, even if this run is stopped here.
        storage.write(storage.join(folder, PAGE_NAME), page.encode())
        # `--exclude` refuses a file without keys.
        storage.write(exclude, keys.encode()) if keys else storage.delete([exclude])
        storage.write(storage.join(folder, JSON_NAME), to_json(found).encode())
    return found


def _prepare(folder: str) -> None:
    """Checks that the page and its files can be written, as hashing takes minutes."""
    check_page_folder("output", folder, JSON_NAME, EXCLUDE_NAME)
    probe = storage.join(folder, ".probe")
    with output_errors(folder, PAGE_NAME):
        storage.write(probe, b"")
        storage.delete([probe])
        storage.delete_unfinished(folder, PAGE_NAME, JSON_NAME, EXCLUDE_NAME, ".probe")


def text_of(found: Mapping[str, Any], folder: str) -> str:
    """Returns the text that the command prints, for results in `folder`."""
    images = counted(found["num_records"], "image")
    lines = [
        f"{images}: {found['exact']:,} exact and {found['near']:,} near duplicates (distance at "
        f"most {found['distance']})"
    ]
    for each in found["splits"]:
        where = f"in {each['other']}, copies of images in {each['kept']}"
        lines.append(f"  {where}: {each['exact']:,} exact, {each['near']:,} near")
    if found["undecodable"]:
        lines.append(
            f"{found['undecodable']:,} of {images} cannot be decoded: near duplicates of these are "
            "not found"
        )
    lines.append(f"page: {storage.join(folder, PAGE_NAME)}")
    if keys := keys_to_remove(found):
        lines.append(f"keys of the images to remove: {storage.join(folder, EXCLUDE_NAME)}")
    if unlisted := len(found["pairs"]) - len(keys):
        lines.append(
            f"not in {EXCLUDE_NAME}, but in {JSON_NAME}: {counted(unlisted, 'duplicate')} with "
            "another class than the image that stays, or with a line break in the key"
        )
    return "\n".join(lines)


def _same_class(pair: Mapping[str, Any]) -> bool:
    return bool(pair["kept"]["class_name"] == pair["other"]["class_name"])


def keys_to_remove(found: Mapping[str, Any]) -> list[str]:
    """Returns the keys of the images that should go and that a line of exclude.txt can hold."""
    keys = [pair["other"]["key"] for pair in found["pairs"] if _same_class(pair)]
    return [key for key in keys if "\n" not in key and not key.endswith("\r")]


def summary(
    manifest: Manifest, distance: int, twins: Sequence[Twin], undecodable: int
) -> dict[str, Any]:
    """Returns the content of duplicates.json: counts, and each image that should go."""

    def image(row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in ("key", "split", "class_name", "shard", "record")}

    counts = Counter((twin.splits, twin.exact) for twin in twins)
    return {
        "fingerprint": manifest.fingerprint,
        "num_records": manifest.num_records,
        "distance": distance,
        "exact": sum(twin.exact for twin in twins),
        "near": sum(not twin.exact for twin in twins),
        "undecodable": undecodable,
        "splits": [
            {"kept": kept, "other": other}
            | {"exact": counts[(kept, other), True], "near": counts[(kept, other), False]}
            for kept, other in dict.fromkeys(twin.splits for twin in twins)
        ],
        "pairs": [
            {"exact": twin.exact, "distance": twin.distance}
            | {"kept": image(twin.kept), "other": image(twin.other)}
            for twin in twins
        ],
    }


def page_of(
    directory: str,
    manifest: Manifest,
    twins: Sequence[Twin],
    found: Mapping[str, Any],
    exclude: str,
) -> str:
    """Returns the page about `twins`, worst first, and `found`, the content of duplicates.json."""
    between = [twin for twin in twins if twin.splits[0] != twin.splits[1]]
    within = [twin for twin in twins if twin.splits[0] == twin.splits[1]]
    mixed = sum(not twin.same_class for twin in twins)
    keys = {*keys_to_remove(found)}
    return render(
        "imageshards.deduplication",
        "page.jinja",
        title=os.path.basename(directory),
        tiles=[
            ("Images", number(found["num_records"]), ""),
            ("Duplicates", number(len(twins)), share(len(twins), found["num_records"])),
            ("Same file", number(found["exact"]), "byte for byte"),
            ("Near", number(found["near"]), "look alike"),
            ("Between splits", number(len(between)), "leaks"),
            ("Of two classes", number(mixed), "labels to check"),
        ],
        counts=[
            (one["other"], one["kept"], number(one["exact"]), number(one["near"]))
            for one in found["splits"]
        ],
        between=_with_pictures(between[:MAX_SHOWN], directory, manifest),
        within=_with_pictures(within[:MAX_SHOWN], directory, manifest),
        num_between=len(between),
        num_within=len(within),
        distance=found["distance"],
        exclude=exclude,
        keys=keys,
        num_unlisted=len(twins) - len(keys),
    )


def _with_pictures(
    twins: Sequence[Twin], directory: str, manifest: Manifest
) -> list[tuple[Twin, Image.Image | None, Image.Image | None]]:
    """Returns each twin with the pictures of the image that stays and of the image that goes."""
    image = manifest.roles.image

    def picture(row: Mapping[str, Any]) -> Image.Image | None:
        try:
            path, begin = shard_path(directory, row["shard"]), row["offset"]
            record = read_record(path, row["record"], begin, begin + row["num_bytes"])
            encoded = decode_record(path, record, [image])[image][0]
        except (LookupError, OSError, RecordError):
            return None  # `imageshards verify` reports the damage.
        return thumbnail(encoded, _THUMB_PX)

    # One pass of threads reads the pictures of both images of all twins.
    rows = [row for twin in twins for row in (twin.kept, twin.other)]
    found = list(storage.map_concurrently(picture, rows))
    return list(zip(twins, found[::2], found[1::2], strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""

    def body() -> int:
        asked = vars(make_parser().parse_args(argv))
        directory = asked.pop("directory")
        folder = asked.get("output") or storage.join(directory, DUPLICATES_NAME)
        print(text_of(duplicates(directory, **asked), folder))
        return 0

    return command_line.run("imageshards duplicates", body)
