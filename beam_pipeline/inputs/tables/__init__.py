"""Image tables: their columns, their rows, and the images that the rows name or contain.

`schema` finds the role of each column, from the first rows and their `cells`. `references` makes
a reference of each row and finds its image.
"""
