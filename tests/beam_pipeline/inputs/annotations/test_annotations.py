"""Detection datasets in their own formats: the same boxes, keys and splits, and nothing silent."""

import pathlib
import shutil
from typing import Any

import pytest

from beam_pipeline.commit.warnings import counts_and_names, warnings_of
from beam_pipeline.inputs.datasets import open_inputs
from beam_pipeline.inputs.listing import list_task, listing_tasks, schemas_of
from beam_pipeline.options import BuildOptions, InputOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards.errors import UserError
from imageshards.manifest import BOX_CLASS_FEATURE, BOX_FEATURES
from tests.support.builds import build, manifest, shard_bytes
from tests.support.detection_sets import NAMES, coco, draw, voc, write, write_forms, yolo
from tests.support.errors import refused
from tests.support.listings import labels, listed, put
from tests.support.stores import store_uri

SPLITS = {"train": 3, "val": 2}
YAML = "names: [wheel, door, lamp post]\nnc: 3\n"


def found(*paths: object, **options) -> tuple[dict[str, ImageRef], dict[str, int]]:
    """What a build lists of inputs that it opened."""
    source, *more = [InputOptions(str(path), **options) for path in paths]
    given = frozenset(options)
    opened = open_inputs(BuildOptions(source, "/none/out", more_sources=tuple(more), given=given))
    return listed([*opened.sources])


def shape(root: pathlib.Path, name: str, splits: dict[str, str]) -> list[pathlib.Path]:
    """Writes small sets in the folders in which others publish them; returns the inputs."""
    drawn = draw(root / "drawn", SPLITS)
    inputs, lists = [root / "set"], dict.fromkeys(SPLITS, "")
    for picture, split, size, boxes in drawn:
        stem, own = picture.removesuffix(".jpg"), splits[split]
        places = {
            "coco": (f"{split}2017/{stem}", ""),
            "coco images": (f"images/{split}/{stem}", ""),
            "coco beside": (f"{own}/{stem}", ""),
            "yolo": (f"images/{own}/{stem}", f"labels/{own}/{stem}.txt"),
            "yolo roboflow": (f"{own}/images/{stem}", f"{own}/labels/{stem}.txt"),
            "yolo classes": (f"images/{own}/{stem}", f"labels/{own}/{stem}.txt"),
            "yolo wrapped": (f"x/{own}/images/{stem}", f"x/{own}/labels/{stem}.txt"),
            "yolo lists": (f"images/{stem}", f"labels/{stem}.txt"),
            "voc": (f"JPEGImages/{stem}", f"Annotations/{stem}.xml"),
            "voc devkit": (f"VOCdevkit/VOC2012/JPEGImages/{stem}",
                           f"VOCdevkit/VOC2012/Annotations/{stem}.xml"),
            "voc roboflow": (f"{own}/{stem}", f"{own}/{stem}.xml"),
        }  # fmt: skip
        place, marks = places[name]
        put(root / "set", f"{place}.jpg")
        shutil.copyfile(root / "drawn" / picture, root / "set" / f"{place}.jpg")
        lists[split] += f"./{place}.jpg\n" if name == "yolo lists" else f"{stem}  1\n"
        if marks:
            text = yolo(boxes, size) if name.startswith("yolo") else voc(picture, boxes)
            write(root / "set" / marks, text)
    for split, own in splits.items():
        content = coco([one for one in drawn if one[1] == split])
        if name in ("coco", "coco images"):
            write(root / f"set/annotations/instances_{split}2017.json", content)
            write(root / f"set/annotations/captions_{split}2017.json", {"images": []})
        elif name == "coco beside":
            write(root / f"set/{own}/_annotations.coco.json", content)
        elif name in ("voc", "voc devkit"):
            top = "VOCdevkit/VOC2012/" * (name == "voc devkit")
            write(root / f"set/{top}ImageSets/Main/{split}.txt", lists[split])
            write(root / f"set/{top}ImageSets/Main/door_{split}.txt", lists[split])
        elif name == "yolo lists":
            write(root / f"set/{split}.txt", lists[split])
    if name == "coco":
        inputs = sorted((root / "set/annotations").glob("instances*.json"))
    of_splits = {
        "yolo": "path: ../elsewhere/set\ntrain: images/train\nval: images/val\n",
        "yolo roboflow": "train: ../train/images\nval: ../valid/images\n",
        "yolo lists": "train: train.txt\nval: val.txt\n",
    }
    if name in of_splits:
        inputs = [write(root / "set/data.yaml", of_splits[name] + YAML)][: name != "yolo lists"]
        inputs = inputs or [root / "set"]
    elif name == "yolo wrapped":
        write(root / "set/x/data.yaml", of_splits["yolo roboflow"] + YAML)
    elif name == "yolo classes":
        write(root / "set/labels/classes.txt", "\n".join(NAMES) + "\n")
    return inputs


SHAPES = {
    "coco": {}, "coco images": {}, "coco beside": {"val": "valid"}, "yolo": {},
    "yolo roboflow": {"val": "valid"}, "yolo wrapped": {"val": "valid"}, "yolo classes": {},
    "yolo lists": {}, "voc": {}, "voc devkit": {}, "voc roboflow": {"val": "valid"},
}  # fmt: skip


@pytest.mark.parametrize("where", [lambda path: path, store_uri], ids=["here", "store"])
@pytest.mark.parametrize("name", SHAPES)
def test_each_published_form_gives_the_same_keys_splits_classes_and_boxes(tmp_path, name, where):
    splits = {split: split for split in SPLITS} | SHAPES[name]
    refs, skipped = found(*map(where, shape(tmp_path, name, splits)))
    for picture, split, (width, height), boxes in draw(tmp_path / "drawn", SPLITS):
        ref = refs.pop(picture)
        names = [NAMES[kind] for kind, *_ in boxes]
        assert (ref.split, ref.label) == (splits[split], tuple(sorted({*names})))
        columns = dict(ref.columns or {})
        assert columns[BOX_CLASS_FEATURE] == names
        scale = (1, 1) if name.startswith("yolo") else (width, height)
        sides = [[value / scale["y" in side[-4:]] for value in columns[side]]
                 for side in BOX_FEATURES]  # fmt: skip
        wanted = [[x0 / width, x1 / width, y0 / height, y1 / height] for _, x0, y0, x1, y1 in boxes]
        assert [*map(list, zip(*sides, strict=True))] == [pytest.approx(box) for box in wanted]
    assert not refs and {told.partition(":")[0] for told in skipped} <= {
        "given_split", "used_category", "unused_category", "without_boxes", "not_an_image_name",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.process
def test_three_forms_of_the_same_pictures_give_the_same_bytes(tmp_path):
    made = []
    for form, inputs in write_forms(tmp_path).items():
        flags = [each for path in inputs for each in ("--input", path)]
        output = tmp_path / f"out_{form}"
        assert build(*flags, "--output", output, "--image_size", "48", "--num_shards", "2") == 0
        made.append(shard_bytes(output))
    assert made[0] == made[1] == made[2] and len(made[0]) == 4
    assert manifest(tmp_path / "out_yolo")["classes"] == sorted(NAMES)


BOX = [(0, 1, 2, 10, 12)]


def coco_of(root: pathlib.Path, **more: Any) -> pathlib.Path:
    """A COCO file with two pictures, each with a wheel, and one further box."""
    drawn = [("a.jpg", "train", (40, 40), BOX), ("b.jpg", "train", (40, 40), BOX)]
    put(root, "a.jpg", "b.jpg")
    content = coco(drawn)
    content["annotations"] += [content["annotations"][0] | more] if more else []
    return write(root / "instances.json", content)


def yolo_of(root: pathlib.Path, line: str, yaml: str = YAML) -> pathlib.Path:
    put(root, "images/a.jpg", "images/b.jpg")
    write(root / "data.yaml", yaml)
    write(root / "labels/a.txt", "0 0.5 0.5 0.5 0.5\n" + line)
    return root


def voc_of(root: pathlib.Path, text: str = "", **sets: str) -> pathlib.Path:
    put(root, "JPEGImages/a.jpg", "JPEGImages/b.jpg")
    write(root / "Annotations/a.xml", text or voc("a.jpg", BOX))
    for split, names in sets.items():
        write(root / f"ImageSets/Main/{split}.txt", names)
    return root


def with_files(root: pathlib.Path, **names: Any) -> pathlib.Path:
    for name, text in names.items():
        write(root / name.replace("__", "/").replace("_", "."), text)
    return root


def moved(root: pathlib.Path, name: str, other: str) -> pathlib.Path:
    write(root / other, (root / name).read_text())
    (root / name).unlink()
    return root


def renamed(path: pathlib.Path, name: str, other: str) -> pathlib.Path:
    return write(path, path.read_text().replace(name, other))


POLYGON, POSE = "1 .1 .1 .5 .1 .5 .6\n", "2 .5 .5 .2 .2 .1 .1 2\n"
SHARED = YAML + "train: images\nval: images\ntest: gone\n"


@pytest.mark.parametrize(
    ("make", "number", "said"),
    [
        (lambda t: coco_of(t, iscrowd=1), 2, "1 box of crowds (iscrowd of COCO) left out"),
        (lambda t: coco_of(t, image_id=5), 2, "1 annotation without an image"),
        (coco_of, 2, "2 categories without a box"),
        (lambda t: renamed(coco_of(t), "lamp post", NAMES[0]), 2, "1 category without a box"),
        (lambda t: with_files(coco_of(t).parent, notes_json={"images": 1}), 2, "2 categories"),
        (lambda t: with_files(yolo_of(t, ""), labels__a_txt=""), 0, "1 image without a box, kept"),
        (lambda t: yolo_of(t, ""), 1, "1 image without a file of annotations"),
        (lambda t: with_files(yolo_of(t, ""), labels__b_txt=""), 1, "1 image without a box, kept"),
        (lambda t: yolo_of(t, POLYGON), 2, "1 line of YOLO with more than five numbers"),
        (lambda t: yolo_of(t, POSE, YAML + "kpt_shape: [1, 3]\n"), 2, "keypoints behind a box"),
        (lambda t: with_files(yolo_of(t, ""), labels__c_txt=""), 1, "1 annotation without an im"),
        (lambda t: yolo_of(t, "", SHARED), 1, "pictures for several splits ('train and val')"),
        (lambda t: yolo_of(t, "", SHARED), 1, "pictures that do not exist: 'test: gone'"),
        (lambda t: voc_of(t, voc("a.jpg", BOX).replace("<difficult>0", "<difficult>1")), 1,
         "1 object marked difficult"),
        (lambda t: voc_of(t, voc("old/x.png", BOX)), 1, "1 file of Pascal VOC with another"),
        (lambda t: voc_of(t, train="a\n"), 1, "1 image of Pascal VOC left out"),
    ],
)  # fmt: skip
def test_what_is_left_out_or_kept_has_a_count_and_a_sentence(tmp_path, make, number, said):
    refs, skipped = found(make(tmp_path / "set"))
    boxes = [(ref.columns or {})[BOX_CLASS_FEATURE] for ref in refs.values()]
    assert sum(map(len, boxes)) == number
    _, names = counts_and_names([skipped])
    assert any(said in one for one in warnings_of({}, {}, (), names))


def test_a_category_is_unused_only_if_no_file_has_its_boxes(tmp_path):
    one, other = coco_of(tmp_path / "a"), coco_of(tmp_path / "b", category_id=13)
    _, names = counts_and_names([found(one)[1], found(other)[1]])
    assert any("1 category without a box" in one for one in warnings_of({}, {}, (), names))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda t: coco_of(t, category_id=99), ["annotation 2", "category_id 99"]),
        (lambda t: coco_of(t, bbox=[1, 2, 3]), ["annotation 2", "[1.0, 2.0, 3.0]"]),
        (lambda t: coco_of(t, bbox=[1, 2, -3, 4]), ["a.jpg", "'width'", "-3"]),
        (lambda t: write(t / "x.json", '{"images": [], "annotations": [{"caption": "a"}]}'),
         ["no COCO file of boxes", "image_id"]),
        (lambda t: write(t / "x.json", coco([("gone.jpg", "", (9, 9), BOX)])),
         ["'gone.jpg'", "image_root"]),
        (lambda t: renamed(coco_of(t, category_id=13), "door", NAMES[0]),
         ["two categories of one name"]),
        (lambda t: yolo_of(t, "3 .5 .5 .1 .1\n"), ["a.txt line 2", "class 3", "0 to 2"]),
        (lambda t: yolo_of(t, "0 .5 .5 .1\n"), ["a.txt line 2", "3 numbers"]),
        (lambda t: yolo_of(t, "0 50 50 10 10\n"), ["a.txt line 2", "50.0", "from 0 to 1"]),
        (lambda t: yolo_of(t, "0 .5 .5 -.1 .1\n"), ["a.txt line 2", "width -0.1"]),
        (lambda t: yolo_of(t, "a b\n"), ["a.txt line 2", "numbers"]),
        (lambda t: yolo_of(t, "", "names: {0: a, 2: b}"), ["names", "each number from 0"]),
        (lambda t: yolo_of(t, "", "names: [a]\nnc: 2"), ["nc 2"]),
        (lambda t: yolo_of(t, "", "names: [a]\ntrain: ../x"), ["'train: ../x'", "image_root"]),
        (lambda t: yolo_of(t, "", "nc: 2"), ["without names of classes", "class_names", "flat"]),
        (lambda t: moved(voc_of(t), "Annotations/a.xml", "Annotations/xmls/a.xml"),
         ["Annotations'", "other paths than its pictures", "layout='flat'"]),
        (lambda t: voc_of(t, voc("a.jpg", [(0, 9, 2, 3, 12)])), ["a.xml", "'xmax'", "3"]),
        (lambda t: voc_of(t, "<annotation><object><name>x</name></object></annotation>"),
         ["a.xml", "no annotation of Pascal VOC"]),
        (lambda t: voc_of(t, train="a\n", val="a\n"), ["'a'", "the splits train and val"]),
        (lambda t: with_files(coco_of(t).parent, Annotations__a_xml=voc("a.jpg", BOX),
                              JPEGImages__a_jpg=""), ["coco and voc", "layout='coco'"]),
    ],
)  # fmt: skip
def test_damaged_annotations_are_refused_with_their_place(tmp_path, make, words):
    with pytest.raises(UserError) as e:
        found(make(tmp_path / "set"))
    assert [word for word in words if word not in str(e.value)] == []


def test_pictures_are_found_below_the_image_root(tmp_path):
    for make in (coco_of, lambda t: yolo_of(t, ""), voc_of):
        shutil.rmtree(tmp_path / "set", ignore_errors=True)
        path = make(tmp_path / "set")
        pictures = tmp_path / f"pictures{path.suffix}"
        pictures.mkdir()
        for picture in (tmp_path / "set").rglob("*.jpg"):
            picture.rename(pictures / picture.name)
        refs, _ = found(path, image_root=str(pictures))
        assert [ref.uri for ref in refs.values()] == [f"{pictures}/{n}.jpg" for n in "ab"]
        assert any((ref.columns or {})[BOX_CLASS_FEATURE] == ["wheel"] for ref in refs.values())
        shutil.rmtree(pictures)


def test_an_image_root_is_the_folder_of_the_paths_of_a_table(tmp_path):
    put(tmp_path, "pictures/a.jpg", "x.jpg")
    table = write(tmp_path / "tables/t.csv", "image,label\na.jpg,cat\n")
    refs, _ = found(table, image_root=str(tmp_path / "pictures"))
    assert [(ref.key, ref.uri) for ref in refs.values()] == [
        ("a.jpg", f"{tmp_path}/pictures/a.jpg")
    ]
    write(table, "image,label\n../x.jpg,cat\n")
    with refused("", "image_root"):
        found(table, image_root=str(tmp_path / "pictures"))
    assert found(table, image_root=str(tmp_path / "pictures"), allow_any_path=True)


def test_equal_names_in_two_splits_are_told_apart_by_their_paths(tmp_path):
    for split in ("train", "val"):
        put(tmp_path, f"set/{split}/images/a.jpg")
        write(tmp_path / f"set/{split}/labels/a.txt", "0 .5 .5 .1 .1\n")
    write(tmp_path / "set/data.yaml", YAML)
    refs, _ = found(tmp_path / "set", key_column="image")
    assert {ref.key: ref.split for ref in refs.values()} == {
        "train/images/a.jpg": "train", "val/images/a.jpg": "val",
    }  # fmt: skip


def test_labels_are_the_classes_of_the_boxes_or_none(tmp_path):
    path = coco_of(tmp_path)
    assert [ref.label for ref in found(path)[0].values()] == [("wheel",)] * 2
    assert [ref.label for ref in found(path, label="none")[0].values()] == [None] * 2
    with refused("label", "say label='several' or label='none'"):
        found(path, label="one")


def test_class_names_give_numbers_of_yolo_their_names(tmp_path):
    root = yolo_of(tmp_path, "1 .5 .5 .1 .1\n", "nc: 2")
    (root / "data.yaml").unlink()
    options = BuildOptions(InputOptions(str(root)), "/none/out")
    (source,) = open_inputs(options).sources
    schema = schemas_of([source], ["cat", "dog"])[0]
    refs = [r for t in listing_tasks(source) for r in list_task(t, source, schema)]
    assert ("cat", "dog") in [ref.label for ref in refs if isinstance(ref, ImageRef)]


def test_annotations_in_an_archive_name_the_remedy_and_it_works(tmp_path):
    for make in (coco_of, lambda t: yolo_of(t, ""), voc_of):
        shutil.rmtree(tmp_path / "set", ignore_errors=True)
        make(tmp_path / "set")
        packed = shutil.make_archive(f"{tmp_path}/packed", "zip", tmp_path / "set")
        with refused("input", "unpack an archive, give the folder of the dataset"):
            labels(packed)
        shutil.unpack_archive(packed, tmp_path / "unpacked")
        assert len(found(tmp_path / "unpacked")[0]) == 2
        shutil.rmtree(tmp_path / "unpacked")
