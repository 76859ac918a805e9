"""Where a build runs: on this machine, at a job service, on Flink, on Dataflow.

`choice.choose` gives a `Runner` by Beam's flags; a build makes it `ready`, and has it `run` its
pipelines. `flags` looks at flags before Beam is there.
"""
