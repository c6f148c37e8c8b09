"""kopf, and nothing but kopf: what the watches bring is trimmed into the store, and the sweep is woken.

Only `on.event` handlers: kopf's create, update, timer and daemon handlers would write annotations or
finalizers on nodes and pods.  A handler unpacks its arguments and makes one call.

They are coroutines, although they await nothing: kopf runs plain functions in threads, and neither the store
nor the sweep may be touched from another thread than the event loop's.
"""
