"""Pictures: original files are read, decoded, made upright, resized and encoded as JPEG; the
processes that do it.

Pillow only: neither Beam nor TensorFlow is imported here.
"""
