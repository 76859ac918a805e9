"""Photos as records hold them: decoded, made upright, resized and encoded as JPEG.

A build makes its records by this, and `imageshards predict` what it shows to a model. Pillow only.
"""
