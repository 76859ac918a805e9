"""The forms in which a range of bytes holds an image, and the content of a zip archive's member.

The layout of a member follows APPNOTE.TXT of PKWARE, sections 4.3.7 and 4.4.
"""

from __future__ import annotations

import struct
import zlib

from imageshards.errors import ImageError

# In place of an offset: the image is a whole file.
WHOLE_FILE = -1
# What the bytes of a reference are: an encoded picture, a member of a zip archive behind its local
# header, or a framed record of a dataset.
PICTURE, ZIP_MEMBER, RECORD = "", "zip", "record"

# Methods of compression.
STORED, DEFLATED = 0, 8
_HEADER = struct.Struct("<4s5H3L2H")
# A local header ends with a name and an extra field, and only the header says how long they are.
# The limit leaves out a header of more than a kB, which common archivers do not write.
ZIP_HEADER_BYTES = _HEADER.size + 1024
_SIZES_FOLLOW = 0x08  # a flag: checksum and sizes stand behind the data


def read_zip_member(data: bytes, num_bytes: int, max_bytes: int) -> bytes:
    """Returns the content of a member.

    Args:
        data: Bytes from the member's local header on, at least `ZIP_HEADER_BYTES` more than its
            compressed data, unless the archive ends before.
        num_bytes: Size of its compressed data.
        max_bytes: A larger content is not inflated.

    Raises:
        ImageError: `corrupt`, `truncated` or `too_many_bytes`.
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
        content = inflate.decompress(packed, max_bytes + 1)
    except zlib.error as e:
        raise ImageError("corrupt", f"the zip archive cannot be inflated ({e})") from e
    if len(content) > max_bytes:
        raise ImageError("too_many_bytes", f"more bytes than the limit of {max_bytes}")
    if not inflate.eof:
        raise ImageError("truncated", "the compressed data in the zip archive end too early")
    return content
