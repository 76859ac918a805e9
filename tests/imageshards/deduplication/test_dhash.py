import pytest
from PIL import Image

from imageshards.deduplication.search import difference_hash, hash_of_jpeg
from imageshards.images.encode import encode_image
from tests.support.pictures import JPEG, SMALL, opened, opened_bytes, saved, scene

MIRRORED = Image.Transpose.FLIP_LEFT_RIGHT


def test_bits_say_where_the_right_neighbour_is_lighter():
    to_right = Image.linear_gradient("L").transpose(Image.Transpose.ROTATE_90)
    assert difference_hash(to_right) == 2**64 - 1
    assert difference_hash(to_right.transpose(MIRRORED)) == 0
    assert difference_hash(Image.new("RGB", (30, 40), "white")) == 0


@pytest.mark.parametrize(
    ("changed", "most"),
    [
        (scene(80, 60), 12),
        (scene().resize((333, 250), Image.Resampling.LANCZOS), 12),
        (opened_bytes(saved(scene(), quality=30)), 3),
        (scene().convert("L"), 0),
    ],
)
def test_copies_are_near(changed, most):
    assert f"{difference_hash(scene()):016x}" == "3038183830426262"
    assert (difference_hash(scene()) ^ difference_hash(changed)).bit_count() <= most


def test_the_hash_of_a_jpeg_equals_the_hash_of_its_pixels():
    encoded = encode_image(JPEG, SMALL)
    assert hash_of_jpeg(encoded.data) == difference_hash(opened(encoded)) != 0
    assert hash_of_jpeg(encoded.data[:40]) is None
    large = saved(scene().resize((1600, 1200)))  # is decoded at a fraction of its size
    found = hash_of_jpeg(large)
    assert found and (found ^ difference_hash(opened_bytes(large))).bit_count() <= 6
