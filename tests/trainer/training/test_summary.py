"""Whether the reader or the model limited the speed of a run."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from trainer.training.summary import waiting


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ([0.9, 0.4], "input-bound: the model waited 40.0% of the time for data"),
        ([0.4], "input-bound: the model waited 40.0% of the time for data"),
        ([0.9, 0.01, None], "compute-bound: the model waited 1.0% of the time for data"),
        ([None], None),
    ],
)
def test_the_sentence_names_the_slower_side(
    shares: list[float | None], sentence: str | None
) -> None:
    """Of several epochs the first one counts for nothing: it warms up."""
    assert waiting([{"wait_fraction": share} for share in shares]) == sentence
