"""TFRecords that others wrote, TFDS folders among them, described as a data set."""

from trainer.dataset.external.files import ExternalFile, has_records
from trainer.dataset.external.open import open_external
from trainer.dataset.external.tfds import find_folder

__all__ = ["ExternalFile", "find_folder", "has_records", "open_external"]
