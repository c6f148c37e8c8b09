"""The NCCL probe: how fast this node's GPUs communicate.

`probe` decides what to measure and for how long, and supervises one child process per arm; an engine runs
inside such a child.  Nothing here judges.
"""
