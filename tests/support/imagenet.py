"""ImageNet's official files, drawn: a tar of a tar per synset, a flat tar, lists of labels."""

import io
import pathlib
import tarfile

from tests.support.builds import jpeg

# In the order of the devkit, which is not the order of names.
SYNSETS = ("n02119789", "n02100735", "n01440764")
TRAIN, VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
KAGGLE, DEVKIT = "LOC_val_solution.csv", "ILSVRC2012_validation_ground_truth.txt"


def val_name(number: int) -> str:
    return f"ILSVRC2012_val_{number + 1:08}.JPEG"


def val_synset(number: int) -> str:
    return SYNSETS[number * 2 % 3]


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    found = tarfile.TarInfo(name)
    found.size = len(data)
    tar.addfile(found, io.BytesIO(data))


def draw_imagenet(root: pathlib.Path, train: int = 6, val: int = 9) -> pathlib.Path:
    """Draws both tars with so many images of each synset and in all, and the lists of labels."""
    root.mkdir(parents=True, exist_ok=True)
    with tarfile.open(root / TRAIN, "w") as outer:
        for at, synset in enumerate(sorted(SYNSETS)):
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as inner:
                for number in range(train):
                    _add(inner, f"{synset}_{number * 37 + at}.JPEG", jpeg(100 * at + number))
            _add(outer, f"{synset}.tar", packed.getvalue())
    with tarfile.open(root / VAL, "w") as tar:
        for number in range(val):
            _add(tar, val_name(number), jpeg(1000 + number))
    # Kaggle's rows are in no order, and have the classes and sides of all boxes.
    rows = [f"{val_name(n)[:-5]},{f'{val_synset(n)} 85 1 499 272 ' * (1 + n % 2)}"
            for n in reversed(range(val))]  # fmt: skip
    (root / KAGGLE).write_text("\n".join(["ImageId,PredictionString", *rows]) + "\n")
    numbers = [SYNSETS.index(val_synset(n)) + 1 for n in range(val)]
    (root / DEVKIT).write_text("".join(f"{number}\n" for number in numbers))
    return root
