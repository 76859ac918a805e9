"""Templates of paths, filled with the cells of a row."""

import pytest

from imageshards.template import fields, fill
from tests.support.errors import refused


def test_columns_of_a_row_replace_their_names():
    template = "train/{site}/{id} {site}.jpg"
    assert fields(template) == ["site", "id"]
    assert fill(template, {"id": 7, "site": "{id}", "more": ""}) == "train/{id}/7 {id}.jpg"


@pytest.mark.parametrize("template", ["", "train/x.jpg", "{}.jpg", "{id", "{id}}.jpg", "{{id}}"])
def test_a_template_without_columns_is_refused(template):
    with refused("image_path", repr(template), "braces"):
        fields(template)
