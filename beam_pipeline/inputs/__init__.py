"""Inputs, which become references: folders, archives, tables, annotations, datasets.

`layout` finds the kind of an input. `listing` cuts the input into tasks and lists them. `folders`,
`archives` and `tables` read the input, `labels` finds labels and splits in names of folders and
files, `annotations` reads COCO, YOLO and Pascal VOC, `spool` unpacks files that cannot be read by
ranges. `transforms` wires this for Beam.
"""
