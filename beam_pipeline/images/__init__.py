"""Pictures: original files are read, decoded, made upright, resized and encoded as JPEG; the
processes that do it.

Pillow only: neither Beam nor TensorFlow is imported here.
"""

from beam_pipeline.images.encode import EncodedImage, encode_image
from beam_pipeline.images.geometry import map_boxes
from beam_pipeline.images.read import read_images

__all__ = ["EncodedImage", "encode_image", "map_boxes", "read_images"]
