"""An input becomes references here: class folders, split folders, flat folders, globs, tables.

`layout` tells what an input is; `listing` cuts it into tasks and lists them; `folders` and
`table_rows`, `image_table` read what is there; `transforms` wires it for Beam.
"""
