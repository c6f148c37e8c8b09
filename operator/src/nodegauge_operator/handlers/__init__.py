"""kopf, and nothing but kopf: what the watches bring is trimmed into the store, and the sweep is woken.

Only `on.event` handlers: kopf's create, update, timer and daemon handlers would write annotations or
finalizers on nodes and pods.  A handler unpacks its arguments and makes one call.  An event of type None is
an object of kopf's own list: at the start, and after an interruption of that one watch, when kopf never says
what was deleted meanwhile; every handler passes that on.

They are coroutines, although they await nothing: kopf runs plain functions in threads, and neither the store
nor the sweep may be touched from another thread than the event loop's.
"""
