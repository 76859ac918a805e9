"""Reads the content of a member of a zip archive, and names the forms in which files hold images.

The layout of a member follows APPNOTE.TXT of PKWARE, sections 4.3.7 and 4.4.
"""

from __future__ import annotations

import struct
import zlib

from imageshards.errors import ImageError

# Replaces an offset if the image is a whole file.
WHOLE_FILE = -1
# The bytes of a reference are an encoded picture, a member of a zip archive behind its local
# header, or a framed record of a dataset.
PICTURE, ZIP_MEMBER, RECORD = "", "zip", "record"

# Compression methods that the build reads.
STORED, DEFLATED = 0, 8
_HEADER = struct.Struct("<4s5H3L2H")
# A local header ends with a name and an extra field, whose lengths only the header says. One read
# fetches header and data, and allows 1 KiB for both fields, enough for common archivers.
ZIP_HEADER_BYTES = _HEADER.size + 1024
# This flag says that the checksum is behind the data, and that the checksum in the header is 0.
_SIZES_FOLLOW = 0x08


def read_zip_member(data: bytes, num_bytes: int, max_bytes: int) -> bytes:
    """Returns the content of a member of a zip archive.

    Args:
        data: Bytes from the member's local header on. At least `ZIP_HEADER_BYTES` more than the
            compressed data, unless the archive ends earlier.
        num_bytes: Size of the compressed data.
        max_bytes: Limit of the content; larger contents are not inflated.

    Raises:
        ImageError: `corrupt`, `truncated`, `too_many_bytes` or `unsupported_format`.
    """
    if len(data) < _HEADER.size or not data.startswith(b"PK\x03\x04"):
        raise ImageError("corrupt", "no member of the zip archive begins where one was listed")
    _, _, flags, method, _, _, checksum, _, _, name, extra = _HEADER.unpack_from(data)
    begin = _HEADER.size + name + extra
    if begin > ZIP_HEADER_BYTES:
        text = f"the zip archive has {begin:,} bytes before the image's data; pack it again"
        raise ImageError("unsupported_format", text)
    packed = data[begin : begin + num_bytes]
    if len(packed) < num_bytes:
        raise ImageError("truncated", "the zip archive ends before the image does")
    content = packed if method == STORED else _inflated(packed, max_bytes)
    if not flags & _SIZES_FOLLOW and zlib.crc32(content) != checksum:
        raise ImageError("corrupt", "the checksum in the zip archive is that of other bytes")
    return content


def _inflated(packed: bytes, max_bytes: int) -> bytes:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        # A byte more than the limit shows that the content is too large.
        content = inflate.decompress(packed, max_bytes + 1)
    except zlib.error as e:
        raise ImageError("corrupt", f"the zip archive cannot be inflated ({e})") from e
    if len(content) > max_bytes:
        raise ImageError("too_many_bytes", f"more bytes than the limit of {max_bytes}")
    if not inflate.eof:
        raise ImageError("truncated", "the compressed data in the zip archive end too early")
    return content
