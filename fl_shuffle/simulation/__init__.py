"""Playing a whole federation on this machine: `launch` starts a run.

The apps of the configuration run unchanged, in this process, in Ray's, or on Flower's runtime.
"""
