"""Makes a dataset of existing TFRecords, by adding a manifest and an index to them."""

from imageshards.adopt.command import adopt
from imageshards.adopt.features import AdoptOptions

__all__ = ["AdoptOptions", "adopt"]
