"""Archives: `members` finds the images, and `references` labels them as in a folder.

`webdataset` takes members of one key as a sample; texts beside the image are columns.
"""
