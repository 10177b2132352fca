"""A work queue that coalesces keys: in memory, or durable in SQLite, PostgreSQL and Redis.

- A key that is added many times before it runs, runs once.
- No two workers have the same key at the same time.
- A key that is added during its run, runs once more.
- A run that fails is retried after a backoff that grows.
- An item that is dropped without a completion counts as a failure.
"""

from ._errors import *
from ._errors import __all__ as _errors
from ._memory import Item, Queue
from ._native import FakeClock as FakeClock
from ._store import Store, StoreItem, StoreQueue
from ._types import *
from ._types import __all__ as _types
from ._workers import Context, Handler, Workers, handler

__all__ = [
    "Context",
    "FakeClock",
    "Handler",
    "Item",
    "Queue",
    "Store",
    "StoreItem",
    "StoreQueue",
    "Workers",
    "handler",
    *_errors,
    *_types,
]
