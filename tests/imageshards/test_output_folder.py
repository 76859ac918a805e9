import pytest

from imageshards.errors import UserError
from imageshards.output_folder import check_page_folder
from imageshards.page import render

OURS = render("imageshards.page", "base.jinja", title="t", what="w", tiles=[], parts=[])
MINE = "<!DOCTYPE html><title>mine</title>"


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ({}, None),
        ({"notes.txt": ""}, None),  # nothing writes there
        ({"index.html": OURS, "keys.txt": ""}, None),
        ({"index.html": MINE, "keys.txt": ""}, "'index.html', 'keys.txt'"),
        ({"keys.txt": ""}, "'keys.txt'"),
    ],
)
def test_a_page_replaces_only_a_former_page(tmp_path, files, refused):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    if refused is None:
        for folder in (tmp_path, tmp_path / "new"):
            check_page_folder("--report", str(folder), "index.html", "keys.txt")
        return
    with pytest.raises(UserError, match=rf"^--report .* accounts for \({refused}\); expected"):
        check_page_folder("--report", str(tmp_path), "index.html", "keys.txt")
