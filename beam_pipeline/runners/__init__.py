"""Where a build runs: `choice.choose` gives a `Runner` of this machine or of a cluster."""
