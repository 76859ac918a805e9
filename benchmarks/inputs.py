"""Pictures to measure with: a few hundred real ones, repeated by hard links."""

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
# ext4 allows 65,000 names of one file.
_MAX_LINKS = 60_000
_ROWS = 500  # of a row group


def photos(
    data: pathlib.Path, work: pathlib.Path, sample: str = SAMPLE
) -> tuple[list[pathlib.Path], bool]:
    """Photos of about 500x400 pixels in `work`, and whether they are real ones.

    Copies of a shared sample, so that its files get no links; drawn ones if it is absent.
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
    """Something with the sizes, colours and grain of a photo."""
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
    """`images` links to the sources in `classes` folders below `root`; made once, then kept.

    Raises:
        OSError: The file system has no hard links.
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
    """The images of class folders in one file beside these, `.tar` or `.parquet`; then kept."""
    target = folder.with_name(folder.name + suffix)
    if not target.exists():
        unfinished = target.with_suffix(".tmp")
        paths = sorted(path for path in folder.rglob("*.jpg"))
        if suffix == ".tar":
            with tarfile.open(unfinished, "w") as tar:
                for path in paths:
                    # Links to one photo are files of their own: a tar would keep one of them.
                    with open(path, "rb") as file:
                        member = tarfile.TarInfo(str(path.relative_to(folder)))
                        member.size = path.stat().st_size
                        tar.addfile(member, file)
        else:
            _write_parquet(unfinished, folder, paths)
        unfinished.rename(target)
    with open(target, "rb") as file:  # into the page cache
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
    """Brings names and bytes into the page cache."""
    for source in sources:
        source.read_bytes()
    for folder in os.scandir(root):
        for entry in os.scandir(folder.path):
            entry.stat()
