"""Finished shards become a data set here: evened out, made visible, the manifest written last.

`staging` knows the folder of an unfinished data set, and what a killed job left in it.
"""

import lazy_loader as lazy

# The staging folder is looked at before Beam is loaded.
__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
