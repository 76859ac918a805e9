"""TFRecords that others wrote are looked at once, and described by a manifest and an index."""

from imageshards.adopt.adopt import AdoptOptions, adopt

__all__ = ["AdoptOptions", "adopt"]
