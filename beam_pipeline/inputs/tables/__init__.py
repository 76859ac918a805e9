"""Image tables: their columns, their rows, and the images that the rows name or hold.

`schema` finds what each column is for, from the first `rows` and their `cells`. `references` makes
a reference of each row. `places` finds its image, or `pictures` takes it from a Parquet file.
"""
