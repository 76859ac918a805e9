"""TFRecords that others wrote are looked at once, and described by a manifest and an index."""

from imageshards.adopt.adopt import adopt
from imageshards.adopt.features import AdoptOptions

__all__ = ["AdoptOptions", "adopt"]
