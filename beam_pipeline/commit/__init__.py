"""Finished shards become a data set here: evened out, made visible, the manifest written last.

`staging` knows the folder of an unfinished data set, and what a killed job left in it; it is looked
at before Beam is loaded.
"""
