"""The NCCL benchmark: what it costs this node's GPUs to talk to each other.

The probe (`measure`) decides what to measure and for how long, and keeps watch over one child process per
arm; an engine is what runs inside such a child.  Nothing here judges.
"""
