"""Original files: read from disks, stores and web addresses; the processes that encode them.

Neither Beam nor TensorFlow is imported here.
"""
