"""The same annotated pictures as a COCO file, a YOLO folder and a Pascal VOC folder."""

import json
import pathlib
from typing import Any

import numpy as np
from PIL import Image

from tests.support.pictures import saved

NAMES = ("wheel", "door", "lamp post")
SPLITS = {"train": 48, "val": 12}

# Name of a picture, its split, its width and height, and class number, xmin, …, ymax of boxes.
Drawn = tuple[str, str, tuple[int, int], list[tuple[int, int, int, int, int]]]


def draw(folder: pathlib.Path, splits: dict[str, int] = SPLITS) -> list[Drawn]:
    """Draws pictures into a folder; each fifth has no box, and one box reaches to all sides."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    drawn: list[Drawn] = []
    for split, number in [(s, n) for s, count in splits.items() for n in range(count)]:
        width, height = (int(side) for side in rng.integers(40, 200, 2))
        pixels = rng.integers(0, 255, (height, width, 3)).astype(np.uint8)
        boxes = []
        for index in range(number % 5):
            x, y = sorted(rng.integers(0, width, 2)), sorted(rng.integers(0, height, 2))
            box = (int(x[0]), int(y[0]), int(x[1]) + 1, int(y[1]) + 1)
            boxes.append((int(rng.integers(3)), *(box if index else (0, 0, width, height))))
        name = f"{split}_{number:04d}.jpg"
        (folder / name).write_bytes(saved(Image.fromarray(pixels)))
        drawn.append((name, split, (width, height), boxes))
    return drawn


def coco(drawn: list[Drawn], **more: Any) -> dict[str, Any]:
    """The content of a COCO file, whose categories do not begin at 0 and have gaps."""
    images = [
        {"id": 7 * n, "file_name": name, "width": width, "height": height}
        for n, (name, _, (width, height), _) in enumerate(drawn)
    ]
    annotations = [
        {
            "id": 100 * n + i, "image_id": 7 * n, "category_id": 10 * kind + 3, "iscrowd": 0,
            "bbox": [x0, y0, x1 - x0, y1 - y0], "area": 1.0, "segmentation": [[x0, y0, x1, y1]],
        }
        for n, (*_, boxes) in enumerate(drawn)
        for i, (kind, x0, y0, x1, y1) in enumerate(boxes)
    ]  # fmt: skip
    categories = [{"id": 10 * n + 3, "name": name} for n, name in enumerate(NAMES)]
    found = {"images": images, "annotations": annotations, "categories": categories}
    return {"info": {"year": 2026}, "licenses": []} | found | more


def yolo(boxes: list[tuple[int, int, int, int, int]], size: tuple[int, int]) -> str:
    """The lines of a file of labels, with all digits of each number."""
    width, height = size
    return "".join(
        f"{kind} {(x0 + x1) / 2 / width!r} {(y0 + y1) / 2 / height!r}"
        f" {(x1 - x0) / width!r} {(y1 - y0) / height!r}\n"
        for kind, x0, y0, x1, y1 in boxes
    )


def voc(name: str, boxes: list[tuple[int, int, int, int, int]], more: str = "") -> str:
    """An annotation of Pascal VOC, with the pixels of the picture."""
    objects = "".join(
        f"<object><name>{NAMES[kind]}</name><difficult>0</difficult><bndbox><xmin>{x0}</xmin>"
        f"<ymin>{y0}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox>{more}</object>\n"
        for kind, x0, y0, x1, y1 in boxes
    )
    return f"<annotation>\n<filename>{name}</filename>\n{objects}</annotation>\n"


def write(path: pathlib.Path, content: Any) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def write_forms(root: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """Writes the three forms of the same 60 pictures; returns the inputs of each."""
    forms = ("coco", "yolo", "voc")
    drawn = draw(root / "drawn")
    folders = {"coco": "{split}2017", "yolo": "images/{split}", "voc": "JPEGImages"}
    for form in forms:
        for name, split, size, boxes in drawn:
            picture = root / form / folders[form].format(split=split) / name
            picture.parent.mkdir(parents=True, exist_ok=True)
            picture.write_bytes((root / "drawn" / name).read_bytes())
            stem = picture.stem
            if form == "yolo":
                write(root / form / f"labels/{split}/{stem}.txt", yolo(boxes, size))
            elif form == "voc":
                write(root / form / f"Annotations/{stem}.xml", voc(name, boxes))
    for split in SPLITS:
        own = [one for one in drawn if one[1] == split]
        write(root / f"coco/annotations/instances_{split}2017.json", coco(own))
        stems = [f"{name.removesuffix('.jpg')}\n" for name, *_ in own]
        write(root / f"voc/ImageSets/Main/{split}.txt", "".join(stems))
    lines = [f"{split}: images/{split}\n" for split in SPLITS]
    names = "".join(f"  {n}: {name}\n" for n, name in enumerate(NAMES))
    write(root / "yolo/data.yaml", f"path: .\n{''.join(lines)}names:\n{names}")
    instances = sorted((root / "coco/annotations").glob("*.json"))
    return {"coco": instances, "yolo": [root / "yolo"], "voc": [root / "voc"]}
