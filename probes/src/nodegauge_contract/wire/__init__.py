"""The termination message: a result document in at most 4,096 bytes, and back.

`codec` is the way in and out.  `columns`, `cells`, `bits` and `dictionary` make it small; `drop_order` says
what is left out first when it does not fit.
"""
