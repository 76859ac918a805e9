"""Decodes image files, which may be damaged or hostile, into pixels that can be resized.

The first bytes decide the format, and only the Pillow plugin for this format is called. So hostile
bytes never reach Pillow's plugins for rare formats.
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

from PIL import Image, ImageChops, ImageCms, JpegImagePlugin
from PIL.ImageCms import ImageCmsTransform

from imageshards.errors import ImageError, install_advice
from imageshards.images.geometry import ORIENTATION_TAG, exif_orientation, known_orientation
from imageshards.images.options import ImageOptions
from imageshards.jpeg import (
    DECODE_ERRORS,
    before_scan,
    eight_bits,
    plain_png,
    with_end,
)

# Pillow warns about odd metadata, which this module drops anyway.
warnings.filterwarnings("ignore", module=r"PIL\.")

_PILLOW_ERRORS = (*DECODE_ERRORS, Image.DecompressionBombError)

# AVIF and HEIC differ in the brands of their first box. Both may name `mif1`, so AVIF comes first.
_PLUGINS = (
    (rb"\x89PNG\r\n\x1a\n", "PIL.PngImagePlugin", "PngImageFile"),
    (rb"GIF8[79]a", "PIL.GifImagePlugin", "GifImageFile"),
    (rb"RIFF.{4}WEBP", "PIL.WebPImagePlugin", "WebPImageFile"),
    (rb"BM", "PIL.BmpImagePlugin", "BmpImageFile"),
    (rb"II\*\0|MM\0\*", "PIL.TiffImagePlugin", "TiffImageFile"),
    (rb".{4}ftyp(.{4}){0,9}avi[fs]", "PIL.AvifImagePlugin", "AvifImageFile"),
    (rb".{4}ftyp(.{4}){0,9}(hei[cxms]|m[is]f1)", "pillow_heif", "HeifImageFile"),
)

# Texts of Pillow's, libavif's and libheif's errors for a file that ends too early.
_ENDED = "truncated|end of file|cannot read full meta box"

# Content that is often found in place of a picture → reason and message.
_STAND_INS = (
    (rb"version https://git-lfs\.github\.com/spec/", "git_lfs_pointer",
     "A pointer of Git LFS in place of the picture; run git lfs pull in the clone it is from."),
    (rb"8BPS|%PDF|\xff\x0a|\xffO\xffQ|.{4}(ftyp|(jP  |JXL )\r\n\x87\n)"
     rb"|(\xef\xbb\xbf)?\s*(<\?xml.{,1000}?)?<svg", "unsupported_format",
     "A video, raw picture, JPEG 2000, JPEG XL, Photoshop file, PDF or SVG; expected JPEG, PNG, "
     "WebP, AVIF, HEIC, GIF, BMP or TIFF: convert it."),
    (rb"(\xef\xbb\xbf)?\s*<(!doctype html|html|head|\?xml)", "web_page",
     "A web page or an answer in XML, mostly of an error, in place of the picture; download it "
     "again."),
    (rb"\0+\Z", "only_zeros",
     "All bytes are 0, as after a download or a copy that was not finished; fetch it again."),
)  # fmt: skip

# Pillow mode → the mode the pixels are resized in. Further modes have no agreed way to 8 bits.
_WORKING_MODES = {
    "1": "L", "L": "L", "P": "RGB", "RGB": "RGB", "RGBX": "RGB", "YCbCr": "RGB", "HSV": "RGB",
    "CMYK": "RGB", "LAB": "RGB", "LA": "LA", "La": "LA", "PA": "RGBA", "RGBA": "RGBA",
    "RGBa": "RGBA",
}  # fmt: skip

# CMYK profiles contain tables and have up to 3 MB. `srgb_transform` keeps up to 16 profiles.
_MAX_PROFILE_BYTES = 4 << 20
# A profile's colour space → the mode that the profile applies to, and the Pillow modes that can be
# converted to this mode. Grey pictures with an RGB profile are common, and grey is an RGB colour.
_GREY = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N")
_COLOURED = ("P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "YCbCr")
_SPACES = {
    "GRAY": ("L", _GREY), "RGB ": ("RGB", _GREY + _COLOURED), "CMYK": ("CMYK", ("CMYK",)),
}  # fmt: skip
# A profile that changes colours by at most this many levels counts as sRGB. The sRGB profiles of
# four makers change 0 or 1, and the most similar profile of a different space changes 9.
_ROUNDING = 2

# Each scan of a progressive JPEG visits every coefficient, so a few kB with many scans could take
# hours to decode. Encoders write about 10.
_MAX_SCANS = 100


class _Jpeg(JpegImagePlugin.JpegImageFile):
    """A JPEG, or the first picture of an MPO, without EXIF."""

    def _read_dpi_from_exif(self) -> None:
        """Does nothing, because Pillow would parse the whole EXIF for an unused resolution."""


@dataclasses.dataclass
class Source:
    """An opened picture.

    Attributes:
        image: The picture: the header of a JPEG, or the pixels of any other format.
        format: Pillow's name of the format.
        orientation: EXIF orientation, 1..8, of the stored pixels.
        is_upright: Whether `image` is upright already (Pillow turns TIFFs itself).
        notes: The normalisations that the picture needs, for the counts of a build.
        can_draft: Whether `load_pixels` can decode to a fraction of the size.
        transform: Conversion of the pixels to sRGB; None if they need none.
        jpeg: The bytes of a JPEG, else empty.
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
    """Opens a picture and checks its size before decoding any pixel.

    Raises:
        ImageError: `empty`, `too_many_bytes`, `git_lfs_pointer`, `web_page`, `only_zeros`,
            `not_an_image`, `unsupported_format`, `too_many_pixels`, `too_many_scans`,
            `truncated`, `corrupt` or `unsupported_mode`.
    """
    if not data:
        raise ImageError(
            "empty",
            "The file has no bytes: a copy or download that was not finished, a cloud drive's "
            "placeholder, or a row of a table without a picture; fetch it again.",
        )
    if len(data) > options.max_bytes:
        what = f"{len(data)} bytes; at most {options.max_bytes} are accepted."
        raise ImageError("too_many_bytes", what)
    try:
        is_jpeg = data.startswith(b"\xff\xd8")
        source = _open_jpeg(data, options) if is_jpeg else _open_other(data, options)
        notes, mode, info = source.notes, source.image.mode, source.image.info
        if source.orientation != 1:
            notes.append("exif_rotated")
        if mode == "CMYK":
            notes.append("cmyk")
        elif mode in ("L", "LA", "La", "1") or mode.startswith("I;16"):
            notes.append("grey")
        elif mode in ("P", "PA"):
            notes.append("palette")
        if mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in info:
            notes.append("alpha")
        if profile := info.get("icc_profile"):
            note = "icc_profile_dropped"
            if options.icc == "convert":
                source.transform, note = srgb_transform(profile, mode)
            notes.append(note)
        return source
    except _PILLOW_ERRORS as e:
        _reject(e)


def load_pixels(source: Source, *, grey: bool, shrink: int = 1) -> Image.Image:
    """Decodes the pixels, as stored unless `source.is_upright`.

    Args:
        source: From `open_source`.
        grey: Whether grey is wanted, so that a JPEG need not decode its colour.
        shrink: 1, 2, 4 or 8: a JPEG is decoded to this fraction of its size (rounded up) by
            scaled inverse DCTs. 1 unless `source.can_draft`.

    Returns:
        A picture of mode `L`, `RGB`, `LA` or `RGBA`; `CMYK` if `source.transform` takes inks.

    Raises:
        ImageError: As `open_source`.
    """
    grey = grey and not source.transform  # The transform needs the original colours.
    try:
        try:
            image = _drafted(source, grey, shrink)
        except OSError:
            # The JPEG may lack its end marker only; any further damage raises again.
            layers = getattr(source.image, "layer", ())
            whole = with_end(source.jpeg, [component for component, *_ in layers])
            if whole is None:
                raise
            source.image = _jpeg_file(whole)
            source.notes.append("damaged")
            image = _drafted(source, grey, shrink)
        if source.transform and image.mode == "CMYK":
            return image
        image = eight_bits(image)
        mode = _WORKING_MODES.get(image.mode)
        if mode is None:
            what = f"Pixels of mode {image.mode}, which have no agreed 8-bit range."
            raise ImageError("unsupported_mode", what)
        if "transparency" in image.info:
            mode = "RGBA"
        if mode == "RGB" and grey:
            mode = "L"
        if mode != image.mode:
            image = image.convert(mode)
        # Otherwise Pillow would write the source's comment into the new JPEG.
        image.info = {}
        return image
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
        what = f"{width}x{height} pixels; at most {options.max_pixels} in all are accepted."
        raise ImageError("too_many_pixels", what)


def _open_jpeg(data: bytes, options: ImageOptions) -> Source:
    image = _jpeg_file(data)
    _check_pixels(image, options)
    notes = ["progressive"] if "progressive" in image.info else []
    can_draft, components = before_scan(data)
    # More scans follow if the first scan has fewer components than the frame. The markers are
    # counted only then, because counting reads the whole file.
    if notes or components != image.layers:
        scans = data.count(b"\xff\xda")
        if scans > _MAX_SCANS:
            raise ImageError("too_many_scans", f"{scans} scans; at most {_MAX_SCANS} are accepted.")
    orientation = exif_orientation(image.info["exif"]) if "exif" in image.info else 1
    source_format = "MPO" if "mp" in image.info else "JPEG"
    return Source(image, source_format, orientation, False, notes, can_draft, jpeg=data)


def _jpeg_file(data: bytes) -> _Jpeg:
    image = _Jpeg(io.BytesIO(data))
    # Pillow assumes Adobe's inverted inks, but without Adobe's marker 0 means no ink.
    if image.mode == "CMYK" and "adobe" not in image.info:
        image.tile = [tile._replace(args=("CMYK", "")) for tile in image.tile]
    # The decoder gets the file in one piece; by default each 64 KiB start it again.
    image.decodermaxblock = len(data)
    return image


def _open_other(data: bytes, options: ImageOptions) -> Source:
    found = next((row for row in _PLUGINS if re.match(row[0], data, re.DOTALL)), None)
    if found is None:
        raise _unknown(data)
    _, module, name = found
    if module == "PIL.TiffImagePlugin":
        _quieten_libtiff()
    try:
        plugin = getattr(importlib.import_module(module), name)
    except ImportError as e:
        what = f"HEIC; on every machine that decodes, {install_advice('heif')}."
        raise ImageError("unsupported_format", what) from e
    plain, profile = plain_png(data, _MAX_PROFILE_BYTES)
    image: Any = plugin(io.BytesIO(plain))
    _check_pixels(image, options)
    notes = ["not_jpeg"]
    if ";16" in str(image.mode) or any(";16" in str(tile.args) for tile in image.tile):
        notes.append("sixteen_bit")
    tiff = image.format == "TIFF"
    orientation = known_orientation(image.tag_v2.get(ORIENTATION_TAG)) if tiff else 1
    image.load()
    if profile:
        image.info["icc_profile"] = profile
    # This comes after `load`, because a PNG may carry its EXIF behind its pixels. The turn of an
    # AVIF is in this EXIF, too: Pillow puts it there. libheif has turned a HEIC, and sets it to 1.
    if not tiff and image.info.get("exif"):
        orientation = exif_orientation(image.info["exif"])
    # Damage behind the first picture does no harm.
    with contextlib.suppress(*_PILLOW_ERRORS):
        if getattr(image, "is_animated", False):
            notes.append("animated")
    return Source(image, image.format, orientation, tiff, notes)


@functools.cache
def _quieten_libtiff() -> None:
    """Silences libtiff and its plugin, which print and log errors that Pillow raises anyway."""
    import ctypes

    logging.getLogger("PIL.TiffImagePlugin").setLevel(logging.CRITICAL)
    with contextlib.suppress(OSError, AttributeError):
        # Pillow's wheel contains its own libtiff, which only its extension module is linked to.
        ctypes.CDLL(importlib.import_module("PIL._imaging").__file__).TIFFSetErrorHandler(None)


@functools.lru_cache(maxsize=16)
def srgb_transform(profile: bytes, mode: str) -> tuple[ImageCmsTransform | None, str]:
    """Returns the conversion to sRGB of pictures with this profile and Pillow `mode`.

    Returns:
        The transform for `to_srgb`, and the note `icc_converted`. If the pixels stay as they are,
        the transform is None, and the note `icc_srgb`, or `icc_broken` for an unusable profile.
    """
    try:
        given = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        applied, modes = _SPACES[given.profile.xcolor_space]
        if mode not in modes or len(profile) > _MAX_PROFILE_BYTES:
            return None, "icc_broken"
        # As in image editors: without black point compensation the black of a press, which is not
        # quite black, would become dark grey. Between RGB spaces it changes nothing.
        transform = ImageCms.buildTransform(
            given, ImageCms.createProfile("sRGB"), applied, "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )  # fmt: skip
    except (ImageCms.PyCMSError, OSError, LookupError, TypeError, ValueError):
        return None, "icc_broken"
    if applied != "CMYK":
        # Profiles of sRGB differ in their bytes, so their effect on a grid of colours is compared.
        steps = range(0, 256, 17)
        cube = bytes(level for r in steps for g in steps for b in steps for level in (r, g, b))
        colours = Image.frombytes("RGB", (64, 64), cube).convert(applied)
        change = ImageChops.difference(to_srgb(colours, transform), colours.convert("RGB"))
        if max(change.tobytes()) <= _ROUNDING:
            return None, "icc_srgb"
    return transform, "icc_converted"


def to_srgb(image: Image.Image, transform: ImageCmsTransform) -> Image.Image:
    """Applies a transform; returns `RGB`, or `RGBA` with unchanged alpha for `LA` and `RGBA`."""
    converted = transform.apply(image.convert(transform.input_mode))
    if image.mode in ("LA", "RGBA"):
        converted.putalpha(image.getchannel("A"))
    return converted


def _unknown(data: bytes) -> ImageError:
    for pattern, code, message in _STAND_INS:
        if re.match(pattern, data, re.IGNORECASE | re.DOTALL):
            return ImageError(code, message)
    return ImageError("not_an_image", f"No known image begins with the bytes {data[:12]!r}.")


def _reject(error: BaseException) -> NoReturn:
    # Pillow has few types of errors, so the text decides most cases.
    text = str(error) or type(error).__name__
    ended_early = isinstance(error.__cause__, (IndexError, EOFError, struct.error))
    if isinstance(error, Image.DecompressionBombError):
        code = "too_many_pixels"
    elif isinstance(error, MemoryError):
        code = "out_of_memory"
    elif "not installed" in text:  # Pillow was built without AVIF.
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
