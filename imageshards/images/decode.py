"""Decodes image files from anywhere into pixels that can be resized, or raises `ImageError`.

The first bytes tell the format, and the Pillow plugin for it is called by name: hostile bytes never
reach plugins for other formats. Our size limits are checked before Pillow's own warning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import logging
import re
import struct
import warnings
from typing import Any, NoReturn

from PIL import Image, JpegImagePlugin
from PIL.ImageCms import ImageCmsTransform

from imageshards.errors import ImageError, install_advice
from imageshards.images.icc import srgb_transform
from imageshards.images.jpeg_end import with_end
from imageshards.images.options import ImageOptions
from imageshards.jpeg import DECODE_ERRORS, before_scan, eight_bits

# Pillow warns about odd metadata, which is dropped here anyway.
warnings.filterwarnings("ignore", module=r"PIL\.")

_PILLOW_ERRORS = (*DECODE_ERRORS, Image.DecompressionBombError)

# The brands in the first box of an AVIF and of a HEIC tell them apart: both may name `mif1`.
_PLUGINS = (
    (rb"\x89PNG\r\n\x1a\n", "PIL.PngImagePlugin", "PngImageFile"),
    (rb"GIF8[79]a", "PIL.GifImagePlugin", "GifImageFile"),
    (rb"RIFF.{4}WEBP", "PIL.WebPImagePlugin", "WebPImageFile"),
    (rb"BM", "PIL.BmpImagePlugin", "BmpImageFile"),
    (rb"II\*\0|MM\0\*", "PIL.TiffImagePlugin", "TiffImageFile"),
    (rb".{4}ftyp(.{4}){0,9}avi[fs]", "PIL.AvifImagePlugin", "AvifImageFile"),
    (rb".{4}ftyp(.{4}){0,9}(hei[cxms]|m[is]f1)", "pillow_heif", "HeifImageFile"),
)

# What Pillow, libavif and libheif say where a file ends too early.
_ENDED = "truncated|end of file|cannot read full meta box"

_UNSUPPORTED = (
    (4, b"ftyp", "A video or a raw picture"),
    (4, b"jP  \r\n\x87\n", "JPEG 2000"),
    (0, b"\xffO\xffQ", "JPEG 2000"),
    (0, b"\xff\x0a", "JPEG XL"),
    (4, b"JXL \r\n\x87\n", "JPEG XL"),
    (0, b"8BPS", "Photoshop"),
    (0, b"%PDF", "PDF"),
)
# What is often found in place of a picture → reason and message.
_STAND_INS = (
    (rb"version https://git-lfs\.github\.com/spec/", "git_lfs_pointer",
     "A pointer of Git LFS in place of the picture; run git lfs pull in the clone it is from."),
    (rb"(\xef\xbb\xbf)?\s*(<\?xml.{,1000}?)?<svg", "unsupported_format",
     "SVG; expected pixels: convert it to PNG."),
    (rb"(\xef\xbb\xbf)?\s*<(!doctype html|html|head|\?xml)", "web_page",
     "A web page or an answer in XML, mostly of an error, in place of the picture; download it "
     "again."),
    (rb"\0+\Z", "only_zeros",
     "All bytes are 0, as after a download or a copy that was not finished; fetch it again."),
)  # fmt: skip

# Pillow mode → the mode the pixels are resized in. Absent: no agreed way to 8 bits.
_WORKING_MODES = {
    "1": "L", "L": "L", "P": "RGB", "RGB": "RGB", "RGBX": "RGB", "YCbCr": "RGB", "HSV": "RGB",
    "CMYK": "RGB", "LAB": "RGB", "LA": "LA", "La": "LA", "PA": "RGBA", "RGBA": "RGBA",
    "RGBa": "RGBA",
}  # fmt: skip

# The EXIF tag for orientation.
ORIENTATION_TAG = 0x0112

# Each scan of a progressive JPEG touches every coefficient, so that a few kB with many scans could
# take hours to decode. Encoders write about 10.
_MAX_SCANS = 100


class _Jpeg(JpegImagePlugin.JpegImageFile):
    """A JPEG (or the first picture of an MPO) whose EXIF is left unread."""

    def _read_dpi_from_exif(self) -> None:
        """Does nothing: Pillow would parse the whole EXIF for a resolution that is not used."""


@dataclasses.dataclass
class Source:
    """An opened picture.

    Attributes:
        image: Of a JPEG only the header has been read; others are decoded.
        format: Pillow's name of the format.
        orientation: EXIF orientation, 1..8, of the stored pixels.
        is_upright: Whether `image` is upright already (Pillow turns TIFFs itself).
        notes: What will be normalised.
        can_draft: Whether `load_pixels` can decode to a fraction of the size.
        transform: What converts its pixels to sRGB, where they are of another space.
        jpeg: The bytes of a JPEG.
    """

    image: Image.Image
    format: str
    orientation: int
    is_upright: bool
    notes: list[str]
    can_draft: bool = False
    transform: ImageCmsTransform | None = None
    jpeg: bytes = b""


def open_source(data: bytes, options: ImageOptions) -> Source:
    """Opens a picture, its size checked before any pixel is decoded.

    Raises:
        ImageError: `empty`, `too_many_bytes`, `git_lfs_pointer`, `web_page`, `only_zeros`,
            `not_an_image`, `unsupported_format`, `too_many_pixels`, `too_many_scans`,
            `truncated`, `corrupt` or `unsupported_mode`.
    """
    if not data:
        raise ImageError(
            "empty",
            "The file has no bytes: a copy or download that was not finished, or a cloud drive's "
            "placeholder; fetch it again.",
        )
    if len(data) > options.max_bytes:
        raise ImageError(
            "too_many_bytes", f"{len(data)} bytes; at most {options.max_bytes} are accepted."
        )
    try:
        is_jpeg = data.startswith(b"\xff\xd8")
        source = _open_jpeg(data, options) if is_jpeg else _open_other(data, options)
        _note_profile(source, options)
        return source
    except _PILLOW_ERRORS as e:
        _reject(e)


def load_pixels(source: Source, *, grey: bool, shrink: int = 1) -> Image.Image:
    """Decodes to `L`, `RGB`, `LA` or `RGBA`, as stored unless `source.is_upright`.

    To `CMYK` where `source.transform`, which is to be applied yet, takes that.

    Args:
        source: From `open_source`.
        grey: Whether grey is wanted, which spares a JPEG its colour.
        shrink: 1, 2, 4 or 8: a JPEG is decoded to this fraction of its size (rounded up) by
            scaled inverse DCTs. 1 unless `source.can_draft`.

    Raises:
        ImageError: As `open_source`.
    """
    grey = grey and not source.transform
    try:
        try:
            image = _drafted(source, grey, shrink)
        except OSError:
            layers = getattr(source.image, "layer", ())
            whole = with_end(source.jpeg, [component for component, *_ in layers])
            if whole is None:
                raise
            source.image = _jpeg_file(whole)
            source.notes.append("damaged")
            image = _drafted(source, grey, shrink)
        inks = source.transform and image.mode == "CMYK"
        return image if inks else _working(image, grey)
    except _PILLOW_ERRORS as e:
        _reject(e)


def _drafted(source: Source, grey: bool, shrink: int) -> Image.Image:
    image = source.image
    if source.can_draft and (shrink > 1 or grey):
        width, height = image.size
        size = (width // shrink, height // shrink) if shrink > 1 else None
        image.draft("L" if grey else None, size)
    image.load()
    return image


def _check_pixels(image: Image.Image, options: ImageOptions) -> None:
    width, height = image.size
    if width * height > options.max_pixels:
        raise ImageError(
            "too_many_pixels",
            f"{width}x{height} pixels; at most {options.max_pixels} in all are accepted.",
        )


def _open_jpeg(data: bytes, options: ImageOptions) -> Source:
    image = _jpeg_file(data)
    _check_pixels(image, options)
    notes = []
    if "progressive" in image.info:
        notes.append("progressive")
    can_draft, components = before_scan(data)
    # Fewer components in the first scan than in the frame mean that more scans follow.
    if notes or components != image.layers:
        scans = data.count(b"\xff\xda")
        if scans > _MAX_SCANS:
            raise ImageError("too_many_scans", f"{scans} scans; at most {_MAX_SCANS} are accepted.")
    orientation = exif_orientation(image.info["exif"]) if "exif" in image.info else 1
    source_format = "MPO" if "mp" in image.info else "JPEG"
    notes = _notes(image, orientation, notes)
    return Source(image, source_format, orientation, False, notes, can_draft, jpeg=data)


def _jpeg_file(data: bytes) -> _Jpeg:
    image = _Jpeg(io.BytesIO(data))
    # Pillow takes Adobe's inverted inks for granted; without Adobe's marker 0 is no ink.
    if image.mode == "CMYK" and "adobe" not in image.info:
        image.tile = [tile._replace(args=("CMYK", "")) for tile in image.tile]
    # In one piece, not in 64 KiB pieces that each start the decoder again.
    image.decodermaxblock = len(data)
    return image


def _open_other(data: bytes, options: ImageOptions) -> Source:
    found = next((row for row in _PLUGINS if re.match(row[0], data, re.DOTALL)), None)
    if found is None:
        _reject_unknown(data)
    _, module, name = found
    if module == "PIL.TiffImagePlugin":
        _quieten_libtiff()
    try:
        plugin = getattr(importlib.import_module(module), name)
    except ImportError as e:
        raise ImageError(
            "unsupported_format",
            f"HEIC; on every machine that decodes, {install_advice('heif')}.",
        ) from e
    image: Any = plugin(io.BytesIO(data))
    _check_pixels(image, options)
    notes = ["not_jpeg"]
    if ";16" in str(image.mode) or any(";16" in str(tile.args) for tile in image.tile):
        notes.append("sixteen_bit")
    tiff = image.format == "TIFF"
    orientation = _known_orientation(image.tag_v2.get(ORIENTATION_TAG)) if tiff else 1
    image.load()
    # A PNG may carry its EXIF after its pixels. Where an AVIF's box says that it is turned, Pillow
    # puts that there, and does not turn it; libheif turns what it decodes, and says 1 there.
    if not tiff and image.info.get("exif"):
        orientation = exif_orientation(image.info["exif"])
    if _is_animated(image):
        notes.append("animated")
    return Source(image, image.format, orientation, tiff, _notes(image, orientation, notes))


def _note_profile(source: Source, options: ImageOptions) -> None:
    profile, note = source.image.info.get("icc_profile"), "icc_profile_dropped"
    if profile and options.icc == "convert":
        source.transform, note = srgb_transform(profile, source.image.mode)
    if profile:
        source.notes.append(note)


def _known_orientation(orientation: object) -> int:
    """`orientation` where it is one of the eight, else 1: as stored."""
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def exif_orientation(exif: bytes) -> int:
    """The orientation tag of an EXIF block; 1 where there is none or it makes no sense.

    Only the one tag is looked for: Pillow's reader parses every tag, which takes longer and warns
    about what cameras get wrong. The layout is that of a TIFF's first directory
    (TIFF 6.0, section 2), the tag 0x0112 of Exif 2.32.
    """
    start = 6 if exif.startswith(b"Exif\0\0") else 0
    order = {b"II": "<", b"MM": ">"}.get(exif[start : start + 2])
    if order is None:
        return 1
    try:
        directory = start + struct.unpack_from(order + "L", exif, start + 4)[0]
        count = struct.unpack_from(order + "H", exif, directory)[0]
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(order + "HH", exif, entry)
            if tag == ORIENTATION_TAG:
                value = {1: "B", 3: "H", 4: "L"}.get(kind, "H")
                return _known_orientation(struct.unpack_from(order + value, exif, entry + 8)[0])
    except struct.error:
        pass
    return 1


@functools.cache
def _quieten_libtiff() -> None:
    """libtiff prints, and its plugin logs, the damage that Pillow raises as well."""
    import ctypes

    logging.getLogger("PIL.TiffImagePlugin").setLevel(logging.CRITICAL)
    with contextlib.suppress(OSError, AttributeError):
        # Looked up through Pillow's own extension, which is linked to its own libtiff.
        ctypes.CDLL(importlib.import_module("PIL._imaging").__file__).TIFFSetErrorHandler(None)


def _is_animated(image: Any) -> bool:
    """Whether more pictures follow the first; damage behind the first one is no concern."""
    try:
        return bool(getattr(image, "is_animated", False))
    except _PILLOW_ERRORS:
        return False


def _notes(image: Image.Image, orientation: int, notes: list[str]) -> list[str]:
    mode, info = image.mode, image.info
    if orientation != 1:
        notes.append("exif_rotated")
    if mode == "CMYK":
        notes.append("cmyk")
    elif mode in ("L", "LA", "La", "1") or mode.startswith("I;16"):
        notes.append("grey")
    elif mode in ("P", "PA"):
        notes.append("palette")
    if mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in info:
        notes.append("alpha")
    return notes


def _working(image: Image.Image, grey: bool) -> Image.Image:
    image = eight_bits(image)
    mode = _WORKING_MODES.get(image.mode)
    if mode is None:
        raise ImageError(
            "unsupported_mode", f"Pixels of mode {image.mode}, which have no agreed 8-bit range."
        )
    if "transparency" in image.info:
        mode = "RGBA"
    if mode == "RGB" and grey:
        mode = "L"
    if mode != image.mode:
        image = image.convert(mode)
    # Pillow would write the source's comment into the new JPEG.
    image.info = {}
    return image


def _reject_unknown(data: bytes) -> NoReturn:
    for offset, magic, name in _UNSUPPORTED:
        if data.startswith(magic, offset):
            raise ImageError(
                "unsupported_format",
                f"{name}; expected JPEG, PNG, WebP, AVIF, HEIC, GIF, BMP or TIFF: convert it.",
            )
    for pattern, code, message in _STAND_INS:
        if re.match(pattern, data, re.IGNORECASE | re.DOTALL):
            raise ImageError(code, message)
    raise ImageError("not_an_image", f"No known image begins with the bytes {data[:12]!r}.")


def _reject(error: BaseException) -> NoReturn:
    text = str(error) or type(error).__name__
    ended_early = isinstance(error.__cause__, (IndexError, EOFError, struct.error))
    if isinstance(error, Image.DecompressionBombError):
        code = "too_many_pixels"
    elif isinstance(error, MemoryError):
        code = "out_of_memory"
    elif "not installed" in text:  # of AVIF, where Pillow was built without it
        code = "unsupported_format"
    elif "cannot handle" in text or "unsupported" in text.lower() or "unknown pixel mode" in text:
        code = "unsupported_mode"
    elif re.search(_ENDED, text, re.IGNORECASE) or isinstance(error, EOFError) or ended_early:
        code = "truncated"
    else:
        code = "corrupt"
    if ended_early:
        text = "the file ends within its header"
    raise ImageError(code, f"Pillow: {text}") from error
