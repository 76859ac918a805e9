"""Archives: `members` are found without unpacking, and become `references` as in a folder.

`webdataset` takes members of one key as a sample, with the texts beside the image as its columns.
"""
