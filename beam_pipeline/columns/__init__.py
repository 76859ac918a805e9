"""Labels and extra columns, through tensorflow-transform: vocabulary, features, exported graph.

`export` writes and reads what is exported and loads neither Beam nor TensorFlow; `analyzers`,
`arrow` and `preprocessing` are what `transforms` runs.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
