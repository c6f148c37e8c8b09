"""A simulated `libnvidia-ml.so.1`: what the real pynvml loads on a simulated node.

`src/` is the library, in C.  `releases.yaml` says what each driver release knows; a library is linked per
release, so that a function that a driver is too old for is missing from it, as in life.  `build` compiles
once per content and compiler into the cache folder.  Nothing here knows profiles or faults: the library
answers from a state file that `testbed.hardware` writes.
"""
