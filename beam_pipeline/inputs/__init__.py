"""Inputs, which become references: folders, globs, archives, WebDataset, tables, datasets.

`layout` finds the kind of an input. `listing` cuts the input into tasks and lists them. `folders`,
`archives` and `tables` read the input, `labels` finds labels and splits in names of folders and
files, `annotations` says what files are that are no input, `spool` unpacks files that cannot be
read by ranges. `transforms` wires this for Beam.
"""
