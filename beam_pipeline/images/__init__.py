"""Original files: reads them from disks, stores and web addresses, and encodes them in processes.

The modules import neither Beam nor TensorFlow.
"""
