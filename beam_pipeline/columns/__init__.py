"""Labels and extra columns, through tensorflow-transform: vocabulary, features, exported graph.

`transforms` wires the steps, whose parts are in `analyzers`, `arrow` and `preprocessing`. `export`
writes and reads the exported files, and imports neither Beam nor TensorFlow.
"""
