"""What both programs need: the contract on disk, files and objects, errors, the report kit."""

__version__ = "0.1.0"
