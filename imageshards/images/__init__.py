"""Turns photos into the pictures of records: decodes, turns upright, resizes and encodes as JPEG.

A build makes its records with this package, and `imageshards predict` the inputs of a model. The
package needs Pillow only.
"""
