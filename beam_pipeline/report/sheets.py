"""Contact sheets: a few records of evenly spaced shards as small pictures."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError

from imageshards import storage
from imageshards.example import Values, decode_example
from imageshards.storage import map_concurrently
from imageshards.tfrecord import Record, RecordError, read_records, scan_records

if TYPE_CHECKING:
    from PIL import Image, ImageFont

COLUMNS = 8
ROWS = 8
THUMB_PX = 128
GAP_PX = 8
CAPTION_PX = 18

_PAPER, _INK, _TRACK = (251, 250, 248), (80, 86, 94), (239, 238, 234)
# Of what is shown at most 128 px wide, nobody sees more.
_JPEG_QUALITY = 80


class Thumb(NamedTuple):
    """A small picture: RGB, at most `THUMB_PX` on both sides."""

    picture: Image.Image
    label: str
    key: str


def quotas(counts: Sequence[int], wanted: int) -> list[int]:
    """How many records to take from the start of every shard: evenly spaced, evenly many.

    Args:
        counts: Records per shard.
        wanted: Records in all.
    """
    taken = [0] * len(counts)
    left = min(wanted, sum(counts))
    while left:
        open_shards = [i for i, count in enumerate(counts) if taken[i] < count]
        chosen = min(left, len(open_shards))
        for i in range(chosen):
            taken[open_shards[(2 * i + 1) * len(open_shards) // (2 * chosen)]] += 1
        left -= chosen
    return taken


def thumbs_of(
    directory: str, shards: Sequence[Mapping[str, Any]], compression: str
) -> tuple[list[Thumb], int]:
    """Pictures of one split, and how many could not be read.

    Args:
        directory: The data set.
        shards: The split's entries of the manifest.
        compression: `none` or `gzip`.
    """
    wanted = quotas([shard["num_records"] for shard in shards], COLUMNS * ROWS)
    asked = [
        (storage.join(directory, shard["file"]), compression, count, _mean_bytes(shard))
        for shard, count in zip(shards, wanted, strict=True)
        if count
    ]
    # A store is asked for several shards at once.
    some = map if storage.is_local(directory) else map_concurrently
    thumbs = [thumb for found in some(_thumbs_in, asked) for thumb in found]
    return thumbs, sum(wanted) - len(thumbs)


def _mean_bytes(shard: Mapping[str, Any]) -> int:
    return int(shard["num_bytes"] // max(1, shard["num_records"]))


def _first_records(path: str, compression: str, count: int, mean_bytes: int) -> Iterator[Record]:
    """The first records of a shard; of one in a store, hardly more than these is read."""
    if not storage.is_local(path) and compression == "none":
        head = io.BytesIO(storage.read(path, 2 * count * mean_bytes + (64 << 10)))
        found = list(itertools.islice(scan_records(head, path), count))
        whole = [record for record in found if isinstance(record, Record)]
        if len(whole) == count:
            yield from whole
            return
    yield from itertools.islice(read_records(path, compression), count)


def _thumbs_in(asked: tuple[str, str, int, int]) -> list[Thumb]:
    return list(_thumbs(*asked))


def _thumbs(path: str, compression: str, count: int, mean_bytes: int) -> Iterator[Thumb]:
    try:
        for record in _first_records(path, compression, count, mean_bytes):
            features = decode_example(record.payload)
            try:
                picture = _small(_first(features, "image/encoded"))
            except (OSError, SyntaxError, ValueError):
                continue
            label, key = (
                _first(features, name).decode("utf-8", "replace")
                for name in ("image/class/text", "image/filename")
            )
            yield Thumb(picture, label, key)
    except (OSError, RecordError, DecodeError):
        return  # Counted by the caller; what is wrong is for verify to say.


def _first(features: Mapping[str, Values], name: str) -> bytes:
    value = features.get(name) or [b""]
    return value[0] if isinstance(value[0], bytes) else b""


def _small(encoded: bytes) -> Image.Image:
    from PIL import Image

    # Our own pictures, already limited by the build: a large one is no bomb here.
    Image.MAX_IMAGE_PIXELS = None
    with Image.open(io.BytesIO(encoded)) as picture:
        picture.draft("RGB", (THUMB_PX, THUMB_PX))
        picture.thumbnail((THUMB_PX, THUMB_PX), Image.Resampling.BOX)
        return picture.convert("RGB")


def to_jpeg(picture: Image.Image) -> bytes:
    """A thumb for the page."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()


def sheet_of(thumbs: Sequence[Thumb]) -> Image.Image:
    """Thumbs in rows of `COLUMNS`, the class name under each."""
    from PIL import Image, ImageDraw

    columns = max(1, min(COLUMNS, len(thumbs)))
    rows = max(1, -(-len(thumbs) // COLUMNS))
    step_x, step_y = THUMB_PX + GAP_PX, THUMB_PX + CAPTION_PX + GAP_PX
    sheet = Image.new("RGB", (columns * step_x + GAP_PX, rows * step_y + GAP_PX), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = _font()
    for i, thumb in enumerate(thumbs):
        x, y = GAP_PX + i % COLUMNS * step_x, GAP_PX + i // COLUMNS * step_y
        draw.rectangle((x, y, x + THUMB_PX - 1, y + THUMB_PX - 1), fill=_TRACK)
        width, height = thumb.picture.size
        sheet.paste(thumb.picture, (x + (THUMB_PX - width) // 2, y + (THUMB_PX - height) // 2))
        label = _fitted(thumb.label, draw, font)
        draw.text((x, y + THUMB_PX + 2), label, fill=_INK, font=font)
    return sheet


def _font() -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    from PIL import ImageFont

    try:
        return ImageFont.truetype("DejaVuSans.ttf", 11)
    except OSError:  # Pillow's own font knows Latin letters only.
        return ImageFont.load_default(size=12)


def _fitted(label: str, draw: Any, font: Any) -> str:
    """As much of a name as there is room for, on one line."""
    label = " ".join(label[:200].split())
    if draw.textlength(label, font=font) <= THUMB_PX:
        return label
    while label and draw.textlength(label + "…", font=font) > THUMB_PX:
        label = label[:-1]
    return label + "…"
