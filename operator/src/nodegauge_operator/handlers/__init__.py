"""kopf, and only kopf: watch events are trimmed into the cache, and the sweep is woken.

Only `on.event` handlers: kopf's create, update, timer and daemon handlers would write annotations or
finalizers on nodes and pods.  A handler unpacks its arguments and makes one call.  An event of type None is
an object of kopf's own list, taken at the start and after an interruption of that one watch.  kopf does not
report what was deleted meanwhile, so every handler passes such events on.

The handlers are coroutines although they await nothing: kopf runs plain functions in threads, and the cache
and the sweep belong to the event loop's thread.
"""
