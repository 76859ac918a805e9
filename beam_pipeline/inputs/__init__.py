"""An input becomes references here: folders, globs, archives, WebDataset, tables, datasets.

`layout` tells what an input is; `listing` cuts it into tasks and lists them. `folders`, `archives`,
`webdataset`, `table_rows`, `pictures` and `records` read what is there, `labels` and `image_table`
say the labels, `spool` keeps what cannot be read by ranges. `transforms` wires it for Beam.
"""
