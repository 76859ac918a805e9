"""Options of a build for the pictures of records, which the manifest records."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
import re
from typing import Annotated, Any, Literal

from imageshards.commands.options import Option, check_options
from imageshards.errors import Arg, UserError
from imageshards.manifest import Image

# How a picture is encoded unless an option says it.
QUALITY, SUBSAMPLING = 90, "4:2:0"
RESIZE_MODES = ("crop", "stretch", "pad", "shortest", "none")
FILTERS = ("bicubic", "bilinear", "box", "lanczos", "nearest")
# A build reads files with these extensions from folders, unless an option names different ones.
EXTENSIONS = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif",
    *((".heic", ".heif") if importlib.util.find_spec("pillow_heif") else ()),
)  # fmt: skip


# Lower-case names under which file systems, NAS (Synology, QNAP) and desktops keep deleted files,
# thumbnails and snapshots beside pictures. `.Trashes` and `._*` of macOS count as hidden anyway.
_SYSTEM_NAMES = (
    "lost+found", "@eadir", "#recycle", "@recycle", "#snapshot", "@recently-snapshot",
    "$recycle.bin", "system volume information", "__macosx", "thumbs.db", "desktop.ini",
)  # fmt: skip
_PASSED_OVER = re.compile(
    rf"(?:^|/)(?:(?P<hidden>\.)|(?:{'|'.join(map(re.escape, _SYSTEM_NAMES))})(?:/|$))",
    re.IGNORECASE,
)


def passed_over(below: str) -> str | None:
    """Returns why a path cannot be meant as a picture: `hidden`, `system_file`, or None.

    `below` is a path below the folder that the user gave, and each part of it counts.
    """
    found = _PASSED_OVER.search(below)
    return found and ("hidden" if found["hidden"] else "system_file")


def parse_color(text: str) -> tuple[int, int, int]:
    """Parses `RRGGBB` into (red, green, blue), 0..255."""
    if not re.fullmatch(r"#?[0-9a-fA-F]{6}", text):
        expected = "RRGGBB, for example ffffff"
        raise UserError(argument="background", received=repr(text), expected=expected)
    red, green, blue = bytes.fromhex(text.lstrip("#"))
    return red, green, blue


def parse_limit(argument: str, unit: float, text: str) -> int:
    """Parses a limit in a large unit, such as MPX; returns it in whole small units, at least 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value * unit < 1:
        raise UserError(argument=argument, received=text, expected="a number above 0")
    return round(value * unit)


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """The options by which one picture becomes the JPEG of a record.

    With the mode `shortest` the shortest side becomes `height_px`; `none` ignores the size.
    `quality` and `subsampling` are None if JPEGs that need no change keep their bytes.
    """

    # fmt: off
    height_px: int = 256
    width_px: int = 256
    resize_mode: Annotated[str, Option(
        "how a picture gets its size. crop: scale, and cut the centre out. stretch: change the "
        "aspect ratio. pad: fit, and fill with --background. "
        "shortest: scale the shortest side to --image_size. none: keep the size, and copy a JPEG "
        "that needs no change, with its metadata",
        choices=RESIZE_MODES)] = "crop"
    filter: Annotated[str, Option(
        "antialiased resampling filter", choices=FILTERS)] = "bicubic"
    quality: Annotated[int | None, Option(
        "JPEG quality of records. With --resize_mode none, this flag or --subsampling has every "
        "picture encoded (default: 90)", least=1, most=100, metavar="1..100")] = None
    subsampling: Annotated[str | None, Option(
        "chroma subsampling of records (default: 4:2:0)",
        choices=("4:2:0", "4:2:2", "4:4:4"))] = None
    colorspace: Annotated[str, Option(
        "colour space of records: 3 channels or 1", choices=("rgb", "grey"))] = "rgb"
    background: Annotated[tuple[int, int, int], Option(
        "colour under transparent pixels and around padded pictures (default: ffffff)",
        parse=parse_color, metavar="RRGGBB")] = (255, 255, 255)
    icc: Annotated[str, Option(
        "convert: convert pictures with an ICC profile to sRGB; drop: ignore the profile and treat "
        "the pixels as sRGB", choices=("convert", "drop"))] = "convert"
    only_shrink: Annotated[bool, Option("never enlarge a picture")] = False
    max_pixels: Annotated[int, Option(
        "limit in megapixels; larger pictures are rejected without decoding (default: 100)",
        flag="max_image_mpx",
        parse=functools.partial(parse_limit, "max_image_mpx", 1e6), metavar="MPX", least=1,
        )] = 100_000_000
    max_bytes: Annotated[int, Option(
        "limit in MiB; larger files are rejected, without reading if their size is known "
        "(default: 64)",
        flag="max_image_mb",
        parse=functools.partial(parse_limit, "max_image_mb", 2**20), metavar="MIB", least=1,
        )] = 64 * 1024 * 1024
    bbox_frame: Annotated[str, Option(
        "frame of the input's bounding boxes: the pixels as stored in the file, or the picture "
        "after EXIF rotation", choices=("stored", "upright"))] = "stored"
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        # Whoever says how pictures are encoded does not want the bytes of the files.
        if self.resize_mode != "none" or self.quality or self.subsampling:
            # The dataclass is frozen, so a derived value needs the setter of `object`.
            object.__setattr__(self, "quality", self.quality or QUALITY)
            object.__setattr__(self, "subsampling", self.subsampling or SUBSAMPLING)
        if min(self.height_px, self.width_px) < 1 or max(self.height_px, self.width_px) > 16384:
            raise UserError(
                argument="image_size",
                received=f"{self.height_px}x{self.width_px}",
                expected="1 to 16384 pixels a side",
            )
        if self.resize_mode == "shortest" and self.height_px != self.width_px:
            raise UserError(
                argument="image_size",
                received=f"{self.height_px}x{self.width_px} with " + Arg("resize_mode", "shortest"),
                expected="one number, the shortest side",
            )

    @property
    def channels(self) -> Literal[1, 3]:
        """Channels of each record's picture: 3 or 1."""
        return 3 if self.colorspace == "rgb" else 1

    @property
    def keeps_jpegs(self) -> bool:
        """Whether a JPEG that needs no change keeps its bytes."""
        return self.quality is None

    def to_manifest(self) -> Image:
        """Returns the `image` of a manifest, without the statistics of pixels."""
        options = dataclasses.asdict(self)
        height, width = options.pop("height_px"), options.pop("width_px")
        size = height if height == width else (height, width)
        mode = options.pop("resize_mode")
        return Image(size=size, mode=mode, channels=self.channels, **options)

    @classmethod
    def from_manifest(cls, image: Image | None) -> ImageOptions:
        """Returns the options that the `image` of a manifest records; missing ones have defaults.

        Raises:
            UserError, ValueError, TypeError: An option is invalid.
        """
        image = image or Image(size=None, mode="none")
        names = [field.name for field in dataclasses.fields(cls)]
        known = {name: getattr(image, name, None) for name in names}
        options: dict[str, Any] = {name: v for name, v in known.items() if v is not None}
        # `adopt` records no `icc`, because it leaves the colours of pictures alone.
        options["icc"] = image.icc or "drop"
        # The mode of adopted pictures is `exact` if all have the same size, else `none`.
        options["resize_mode"] = "stretch" if image.mode == "exact" else image.mode
        options["colorspace"] = "grey" if image.channels == 1 else "rgb"
        if (size := image.size) is not None:
            options["height_px"], options["width_px"] = (
                (size,) * 2 if isinstance(size, int) else size
            )
        return cls(**options)
