import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.errors import refused
from tests.support.served_models import card, values_card
from trainer.serving.prediction_file import cells_of, check_new, columns_of, write_predictions

MADE_OF = {"model": "a", "input": "b", "batch_size": 4}
ROWS = [
    [f"k{i}", 'a "quoted"\nname', "", 'no, "such"\nfile']
    if i % 5 == 2
    else [f"k{i}", "x,y", "1", ""]
    for i in range(10)
]


def write(path: pathlib.Path, made_of: dict[str, Any] = MADE_OF) -> tuple[int, int]:
    """Returns the first row that was made, and the number of rows with an error."""
    begun = []

    def rows_from(start: int) -> Iterator[Sequence[str]]:
        begun.append(start)
        return iter(ROWS[start:])

    broken = write_predictions(str(path), ["id", "name", "p", "error"], made_of, 10, rows_from)
    return begun[0], broken


def test_a_file_that_was_cut_anywhere_is_finished_with_the_same_bytes(tmp_path):
    assert write(tmp_path / "whole.csv") == (0, 2)
    whole = (tmp_path / "whole.csv").read_bytes()
    for size in range(len(whole) + 1):
        path = tmp_path / "cut.csv"
        (tmp_path / "cut.csv.part").write_bytes(whole[:size])
        (tmp_path / "cut.csv.part.json").write_text(json.dumps(MADE_OF))
        start, broken = write(path)
        assert (path.read_bytes(), broken) == (whole, 2)
        assert start % 4 == 0 and (size < len(whole) or start == 8)
        path.unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["whole.csv"]


def test_an_unfinished_file_of_other_pictures_or_a_finished_one_is_kept(tmp_path):
    path = tmp_path / "out.csv"
    part, state = tmp_path / "out.csv.part", tmp_path / "out.csv.part.json"
    part.write_bytes(b"id,name,p,error\n")
    state.write_text(json.dumps(MADE_OF))
    with refused("output", "another input, batch_size", f"delete {part} and {state}"):
        write(path, MADE_OF | {"input": "c", "batch_size": 5})
    part.unlink()
    state.unlink()
    write(path, MADE_OF | {"input": "c"})
    with refused("output", "exists already"):
        check_new(str(path))
    for other in ("out.parquet", "gs://bucket/out.csv"):
        with refused("output", "local file ending in .csv"):
            check_new(other)


@pytest.mark.parametrize(
    ("of", "found", "header", "cells"),
    [
        (card(), [0.25, 0.75], "id,class,cat,dog,error", "k,dog,0.25,0.75,"),
        (
            card(classes=("class", "error")), [0.5, 0.5],
            "id,class,output_class,output_error,error", "k,class,0.5,0.5,",
        ),
        (
            card(classes=("a", "b", "c"), target={"target": "labels"}), [0.5, 0.1, 0.9],
            "id,labels,a,b,c,error", "k,a c,0.5,0.1,0.9,",
        ),
        (
            card(classes=("a b", "c"), target={"target": "labels"}), [0.5, 0.9],
            "id,labels,a b,c,error", "k,a b|c,0.5,0.9,",
        ),
        (values_card("price"), [1e-7], "id,price,error", "k,1e-07,"),
        (values_card("box", 2), [0.1, 250000.5], "id,box[0],box[1],error", "k,0.1,250000.5,"),
    ],
)  # fmt: skip
def test_rows_have_a_column_for_each_output(of, found, header, cells):
    assert ",".join(columns_of(of, "id")) == header
    assert ",".join(cells_of(of, "k", found, "")) == cells
    empty = cells_of(of, "k", (), "broken")
    assert (len(empty), empty[-1], {*empty[1:-1]}) == (header.count(",") + 1, "broken", {""})
