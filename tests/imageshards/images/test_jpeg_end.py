import io
from typing import Any

import pytest
from PIL import Image

from imageshards.images.encode import encode_image
from imageshards.images.options import ImageOptions
from imageshards.jpeg import with_end
from tests.support.pictures import SMALL, code_of, opened, saved, scene

NOISE = Image.effect_noise((70, 50), 80).convert("RGB")
PICTURES = {
    "noise": NOISE,
    "flat": Image.new("RGB", (40, 40), (200, 10, 30)),
    "grey": NOISE.convert("L"),
    "inks": NOISE.convert("CMYK"),
}
KINDS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 2},
    "optimised": {"optimize": True, "subsampling": 0},
}
# The first boxes of a film that some phones put behind a photo; FF 08 is no marker of a JPEG.
FILM = b"\0\0\0\x18ftypmp42\0\0\0\0isommp42" + b"\0\0\x30\x39mdat" + bytes(range(7, 200)) * 3
FILM += b"\xff\x08\x84\xc0" + bytes(range(256)) * 4


def pixels(data):
    return Image.open(io.BytesIO(data)).tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("picture", PICTURES)
def test_a_jpeg_without_an_end_is_taken_only_where_no_pixel_is_missing(picture, kind):
    data = saved(PICTURES[picture], **KINDS[kind])
    whole, data = pixels(data), data.removesuffix(b"\xff\xd9")
    for behind in (b"", b"\xff", b"\0" * 9, FILM):
        assert pixels(with_end(data + behind, components(data)) or b"") == whole
    for missing in range(1, 160):
        taken = with_end(data[:-missing], components(data))
        assert taken is None or pixels(taken) == whole, missing


def components(data):
    picture: Any = Image.open(io.BytesIO(data))
    return [component for component, *_ in picture.layer]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("behind", [b"", FILM])
def test_a_jpeg_without_an_end_gives_the_record_of_the_whole_jpeg(kind, behind):
    data = saved(scene(), **KINDS[kind])
    for options in (SMALL, ImageOptions(8, 8), ImageOptions(32, 32, colorspace="grey")):
        right = encode_image(data, options, want_sums=True)
        found = encode_image(data[:-2] + behind, options, want_sums=True)
        assert found.data == right.data and found.pixel_sums == right.pixel_sums
        assert found.notes == (*right.notes, "damaged")
        opened(found).verify()
    assert code_of(data[:-20]) == "truncated"


def test_a_progressive_picture_that_lacks_whole_scans_is_refused():
    data = saved(scene(), progressive=True)
    scans = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    assert len(scans) > 3
    for scan in scans[1:]:
        assert with_end(data[:scan], components(data)) is None
        assert code_of(data[:scan]) == "truncated"
    # Scans of one component each: all have to be there.
    assert with_end(data[:-2], [*components(data), 9]) is None


@pytest.mark.parametrize("scan", [b"\0\2", b"\0\x05\xff\xff\xff", b"\xff\xff", b""])
def test_a_hostile_scan_header_raises_no_other_error(scan):
    assert with_end(b"\xff\xd8\xff\xda" + scan, [1]) is None
    assert with_end(b"\xff\xd8\xff\xda\0\x08\1\1\0\0\xff\0" + bytes(9), [1]) is None
