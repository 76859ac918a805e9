"""Prepares input images: hard links to a few hundred real photos."""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import tarfile

import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from benchmarks.measure import remove

SAMPLE = "imagenet_sample"
PETS = "dogs_vs_cats"
_SYNTHETIC = 300
# ext4 allows 65,000 hard links to one file.
_MAX_LINKS = 60_000
_ROWS = 500  # rows of a row group


def photos(
    data: pathlib.Path, work: pathlib.Path, sample: str = SAMPLE
) -> tuple[list[pathlib.Path], bool]:
    """Prepares photos of about 500x400 px in `work`.

    The function copies a sample from `data`, so that the files of the sample get no hard links.
    Without the sample the function draws images.

    Returns:
        The photos, and whether the photos are real.
    """
    source = data / sample
    real = source.is_dir()
    name = "photos" if sample == SAMPLE else sample
    target = work / (name if real else "drawn_photos")
    if not (target / ".complete").exists():
        remove(target)
        target.mkdir(parents=True)
        if real:
            for path in sorted(source.iterdir()):
                shutil.copyfile(path, target / path.name)
        else:
            for number in range(_SYNTHETIC):
                _draw(number).save(target / f"{number:04d}.jpg", quality=90)
        (target / ".complete").touch()
    return sorted(path for path in target.iterdir() if path.name != ".complete"), real


def _draw(seed: int) -> Image.Image:
    """Draws an image with the size, colours and grain of a photo."""
    draw = random.Random(seed)
    size = draw.choice([(500, 375), (500, 333), (375, 500), (640, 480), (500, 500)])
    blurred = Image.frombytes("RGB", (16, 12), draw.randbytes(576))
    fine = Image.frombytes("RGB", (125, 94), draw.randbytes(125 * 94 * 3))
    grain = Image.frombytes("RGB", size, draw.randbytes(size[0] * size[1] * 3))
    picture = blurred.resize(size, Image.Resampling.BICUBIC)
    picture = Image.blend(picture, fine.resize(size, Image.Resampling.BICUBIC), 0.3)
    return Image.blend(picture, grain, 0.1)


def linked_folders(
    sources: list[pathlib.Path], root: pathlib.Path, images: int, classes: int
) -> pathlib.Path:
    """Links `images` files to the sources in `classes` folders below `root`.

    The first call creates the folders; later calls reuse them.

    Raises:
        OSError: The file system does not support hard links.
        ValueError: There are not enough sources for so many links.
    """
    if images > _MAX_LINKS * len(sources):
        raise ValueError(f"{len(sources)} files cannot have {images} links; use more files")
    target = root / f"linked-{images}-in-{classes}"
    complete = root / f"{target.name}.complete"
    if not complete.exists():
        remove(target)
        for label in range(classes):
            folder = target / f"class_{label:04d}"
            folder.mkdir(parents=True)
            for i in range(label, images, classes):
                os.link(sources[i % len(sources)], folder / f"photo_{i:07d}.jpg")
        complete.touch()
    _warm(target, sources)
    return target


def packed(folder: pathlib.Path, suffix: str) -> pathlib.Path:
    """Packs class folders into one file beside the folders, `.tar` or `.parquet`.

    The first call writes the file; later calls reuse the file.
    """
    target = folder.with_name(folder.name + suffix)
    if not target.exists():
        unfinished = target.with_suffix(".tmp")
        paths = sorted(path for path in folder.rglob("*.jpg"))
        if suffix == ".tar":
            with tarfile.open(unfinished, "w") as tar:
                for path in paths:
                    # `tar.add` would store later hard links to a photo as references.
                    with open(path, "rb") as file:
                        member = tarfile.TarInfo(str(path.relative_to(folder)))
                        member.size = path.stat().st_size
                        tar.addfile(member, file)
        else:
            _write_parquet(unfinished, folder, paths)
        unfinished.rename(target)
    # The reading brings the file into the page cache.
    with open(target, "rb") as file:
        while file.read(1 << 24):
            pass
    return target


def _write_parquet(target: pathlib.Path, folder: pathlib.Path, paths: list[pathlib.Path]) -> None:
    picture = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", picture), ("label", pa.string())])
    with parquet.ParquetWriter(target, schema) as writer:
        for start in range(0, len(paths), _ROWS):
            some = paths[start : start + _ROWS]
            images = [
                {"bytes": path.read_bytes(), "path": str(path.relative_to(folder))} for path in some
            ]
            labels = [path.parent.name for path in some]
            writer.write_table(pa.table({"image": images, "label": labels}, schema))


def _warm(root: pathlib.Path, sources: list[pathlib.Path]) -> None:
    """Reads all names and bytes to bring both into the page cache."""
    for source in sources:
        source.read_bytes()
    for folder in os.scandir(root):
        for entry in os.scandir(folder.path):
            entry.stat()
