"""Inputs, which become references: folders, globs, archives, WebDataset, tables, datasets.

`layout` finds the kind of an input. `listing` cuts the input into tasks and lists them. `folders`,
`archives`, `tables` and `records` read the input, `labels` reads labels from names of folders and
files, `spool` unpacks files that cannot be read by ranges. `transforms` wires this for Beam.
"""
