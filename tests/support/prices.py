"""Pictures whose price can be seen: a dataset that `imageshards build` makes of a table."""

import csv
import pathlib

import numpy as np
from PIL import Image

from tests.support.commands import ForkedBuild

# Of the last column some are missing.
COLUMNS = ("price", "partly")
NUM_MISSING = 8


def make_prices(folder: pathlib.Path, count: int = 400) -> pathlib.Path:
    """`count` small pictures, in two splits; the price is some 100,000 to 500,000 by their light.

    The picture with the key `dear.png`, to validate, costs 340,000.
    """
    folder.mkdir(parents=True)
    draw = np.random.default_rng(5)
    rows = []
    for number in range(count):
        light = draw.uniform(0.1, 0.9)
        price = round(100_000 + 400_000 * light)
        name, split = f"{number}.png", "train" if number % 5 else "validation"
        if number == 0:
            name, price, light = "dear.png", 340_000, 0.6
        pixels = np.clip(draw.normal(255 * light, 10, (16, 16, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / name)
        rows.append([name, split, price, "nan" if number % 50 == 1 else price])
    with open(folder / "table.csv", "w", newline="") as file:
        csv.writer(file).writerows([["image", "split", *COLUMNS], *rows])
    built = folder / "set"
    ran = ForkedBuild(
        "--input", folder / "table.csv", "--output", built, "--label", "none", "--image_size", 16,
        "--columns", ",".join(f"{name}:float" for name in COLUMNS), "--num_shards",
        "train=4,validation=2", "--split_column", "split", "--quality", 95,
    ).result()  # fmt: skip
    if ran.returncode:
        raise RuntimeError(f"{ran.returncode}: {ran.stdout}")
    return built
