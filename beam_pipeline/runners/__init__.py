"""Where a build runs: on this machine, at a job service, on Flink, on Dataflow.

`choose` gives a `Runner` by Beam's flags; a build makes it `ready`, and has it `run` its pipelines.
Names are imported when they are used: flags are looked at before Beam is there.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
