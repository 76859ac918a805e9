"""An input becomes references here: folders, globs, archives, WebDataset, tables, datasets.

`layout` tells what an input is; `listing` cuts it into tasks and lists them. `folders`, `archives`,
`tables` and `records` read what is there, `labels` says which labels names of folders and files
hold, `spool` keeps what cannot be read by ranges. `transforms` wires it for Beam.
"""
