"""Defines what the columns of an image table are for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from beam_pipeline.options import RELATIVE, ColumnSpec
from imageshards.manifest import BOX_CLASS_FEATURE
from imageshards.template import fields

# Replaces the name of a key column if rows are numbered.
ROW_NUMBERS = "none"


@dataclasses.dataclass(frozen=True)
class TableSchema:
    image: str  # column of the image path, or of the pictures in a Parquet file; "" with a template
    label: str  # column of the class name or names; "" if images have no label
    key: str | None
    split: str | None
    group: str | None
    columns: tuple[ColumnSpec, ...]  # extra columns, which become features
    warnings: tuple[str, ...] = ()  # sentences about the columns, for the user
    dropped: tuple[str, ...] = ()  # columns that --drop_column leaves out
    several: bool = False  # images have several labels, in lists or texts
    separator: str | None = None  # between several labels in a text
    any_path: bool = False  # rows may name files outside of the folder of their table
    image_root: str | None = None  # folder of relative paths; None for the folder of the table
    form: str = ""  # format of a detection dataset; "" for tables and WebDataset
    class_names: tuple[str, ...] = ()  # by number; () if a number is itself the name of a class
    has_pictures: bool = False  # the image column of a Parquet file holds pictures, not paths
    bbox_format: str = RELATIVE
    box_a_row: bool = False  # each row holds one box, and the rows of an image become one record
    template: str = ""  # path of an image, with columns in braces
    # Extra column → column of the table with its cells, if the names differ.
    cells_of: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Folder above all files of the table, below which a file has its name in the keys of rows.
    root: str = dataclasses.field(default="", compare=False)

    @property
    def names(self) -> list[str]:
        """All columns that are read, each once."""
        key = None if self.key == ROW_NUMBERS else self.key
        of_template = fields(self.template) if self.template else ()
        roles = (self.image, *of_template, self.label, key, self.split, self.group)
        return list(dict.fromkeys([*filter(None, roles), *map(self.column_of, self.columns)]))

    @property
    def classes_from(self) -> str:
        """The column of the labels of images, or else of the classes of boxes; "" for none."""
        return self.label or self.cells_of.get(BOX_CLASS_FEATURE, "")

    def column_of(self, column: ColumnSpec) -> str:
        return self.cells_of.get(column.name, column.name)
