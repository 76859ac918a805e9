"""Makes a dataset of finished shards: evens them out, publishes them, writes the manifest last.

`staging` manages the folder of an unfinished dataset. It needs no Beam, as a build reads that
folder before Beam is imported.
"""
