"""Finished shards become a dataset here: evened out, made visible, the manifest written last.

`staging` knows the folder of an unfinished dataset, and what a killed job left in it; it is looked
at before Beam is loaded.
"""
