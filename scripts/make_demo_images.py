"""Draws the images of `make demo`: three classes that a small network can learn quickly.

The script writes the folders circle, square and triangle below OUTPUT. The images are JPEGs with
random size, place, colour and noise. The folders also contain the untidy files of real datasets:
names with spaces, accents and upper-case extensions; images that are stored sideways with an EXIF
orientation; a grey image, a CMYK image and a PNG with the extension .jpg; two broken files, a text
file and a hidden file. The same seed and the same version of Pillow give the same bytes.
"""

from __future__ import annotations

import argparse
import colorsys
import io
import math
import pathlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence

from PIL import Image, ImageDraw

Point = tuple[float, float]

# Shape and hue (degrees) both depend on the class, so that a small network learns fast.
CLASSES = {"circle": (-20, 20), "square": (100, 140), "triangle": (220, 260)}

# EXIF orientation → the transform that an upright image needs before the encoder stores it.
STORED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
_ORIENTATION_TAG = 0x0112
_CORNERS = {"square": 4, "triangle": 3}


def draw(rng: random.Random, name: str) -> Image.Image:
    """Draws an upright RGB image of the class `name`, 120 to 320 px on each side."""
    width_px, height_px = rng.randint(120, 320), rng.randint(120, 320)
    picture = Image.new("RGB", (width_px, height_px), _hsv(rng.random() * 360, 0.15, rng))
    radius_px = rng.uniform(0.28, 0.42) * min(width_px, height_px)
    centre = (
        rng.uniform(radius_px, width_px - radius_px),
        rng.uniform(radius_px, height_px - radius_px),
    )
    colour = _hsv(rng.uniform(*CLASSES[name]), 0.85, rng)
    pen = ImageDraw.Draw(picture)
    if name == "circle":
        x, y = centre
        box = (x - radius_px, y - radius_px, x + radius_px, y + radius_px)
        pen.ellipse(box, fill=colour)
    else:
        pen.polygon(_corners(rng, _CORNERS[name], centre, radius_px), fill=colour)
    noise = Image.frombytes("L", picture.size, rng.randbytes(width_px * height_px))
    return Image.blend(picture, noise.convert("RGB"), rng.uniform(0.02, 0.15))


def _hsv(hue_degrees: float, saturation: float, rng: random.Random) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(
        hue_degrees / 360 % 1, saturation, rng.uniform(0.6, 0.95)
    )
    return round(255 * red), round(255 * green), round(255 * blue)


def _corners(rng: random.Random, count: int, centre: Point, radius_px: float) -> list[Point]:
    start = rng.uniform(0, 2 * math.pi)
    angles = [start + 2 * math.pi * corner / count for corner in range(count)]
    return [
        (centre[0] + radius_px * math.cos(a), centre[1] + radius_px * math.sin(a)) for a in angles
    ]


def jpeg(picture: Image.Image, orientation: int = 1) -> bytes:
    """Encodes an upright image as a JPEG that is stored with an EXIF orientation."""
    exif = Image.Exif()
    if orientation != 1:
        exif[_ORIENTATION_TAG] = orientation
        picture = picture.transpose(STORED[orientation])
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=92, exif=exif)
    return out.getvalue()


def png(picture: Image.Image) -> bytes:
    """Encodes an image as a PNG."""
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


# (class, number of the image) → the encoder of an image that the builder converts or rejects.
_ODD: dict[tuple[str, int], Callable[[Image.Image], bytes]] = {
    ("circle", 3): lambda picture: jpeg(picture.convert("L")),
    ("square", 3): lambda picture: jpeg(picture.convert("CMYK")),
    ("triangle", 3): png,
    ("square", 5): lambda picture: jpeg(picture)[:700],
    ("triangle", 5): lambda picture: b"this is a note, not a picture\n",
}


def _file_name(name: str, number: int) -> str:
    if number % 10 == 1:
        return f"my {name} no. {number}.jpg"
    if number % 10 == 2:
        return f"{name}_größer_é_{number:04}.JPG"
    return f"{name}_{number:04}.jpg"


def pictures(per_class: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yields the path below the root and the bytes of every file."""
    for name in CLASSES:
        for number in range(per_class):
            rng = random.Random(f"{seed}/{name}/{number}")
            picture = draw(rng, name)
            orientation = rng.choice(sorted(STORED)) if number % 25 == 7 else 1
            odd = _ODD.get((name, number))
            data = odd(picture) if odd else jpeg(picture, orientation)
            yield f"{name}/{_file_name(name, number)}", data
    yield "circle/notes.txt", b"Drawn by scripts/make_demo_images.py.\n"
    yield "square/.hidden.jpg", b""


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the images and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", required=True, help="folder for the class folders")
    parser.add_argument("--per_class", type=int, default=200, help="images (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default %(default)s)")
    args = parser.parse_args(argv)
    if args.per_class < 1:
        parser.error(f"--per_class received {args.per_class}; expected at least 1.")
    root = pathlib.Path(args.output)
    count = 0
    try:
        for path, data in pictures(args.per_class, args.seed):
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            count += 1
    except OSError as error:
        print(f"error: --output {args.output!r} cannot be written: {error}.", file=sys.stderr)
        return 1
    print(f"Drew {count:,} files below {root} ({', '.join(CLASSES)}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
