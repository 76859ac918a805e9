"""Labels and extra columns, through tensorflow-transform: vocabulary, features, exported graph.

`export` writes and reads what is exported and loads neither Beam nor TensorFlow; `analyzers`,
`arrow` and `preprocessing` are what `transforms` runs.
"""
