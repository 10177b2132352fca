"""Servers, and one interface to queues in memory and in stores, for all tests."""

import asyncio
import atexit
import faulthandler
import inspect
import itertools
import logging
import os
import subprocess
import tempfile
import unittest
from collections.abc import Awaitable
from typing import Any, TypeVar, cast

import requeue

T = TypeVar("T")

# Without a handler, `logging` prints each parked key.
logging.getLogger("requeue").addHandler(logging.NullHandler())

# The first backoff expires soon, and the second never expires during a test.
SHORT = (0.001, 0.001)
LONG = (3600, 3600)

_names = itertools.count()
_servers: dict[str, str] | None = None


async def now(result: Awaitable[T] | T) -> T:
    """Awaits the calls of a store. Those of a queue in memory have returned already."""
    return await result if inspect.isawaitable(result) else result


def server(name: str) -> str:
    """Returns the address of a server, which runs until the tests end. Skips the test if the server is missing."""
    global _servers
    if _servers is None:
        _servers = {}
        program = os.environ.get("REQUEUE_SERVERS")
        if program:
            command = [program, "postgres", "redis"]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert process.stdin is not None and process.stdout is not None
            atexit.register(process.wait)
            atexit.register(process.stdin.close)
            while (line := process.stdout.readline().strip()) not in ("", "started"):
                found, url = line.split(" ", 1)
                _servers[found] = url
            process.stdout.close()
    if name not in _servers:
        # The program has added the test to the list of tests that did not run.
        raise unittest.SkipTest(f"no {name} here")
    return _servers[name]


class Case(unittest.IsolatedAsyncioTestCase):
    """A test with queues of one engine."""

    # The address of the store, the name of its server, or None for a queue in memory.
    engine: str | None = None

    async def asyncSetUp(self) -> None:
        self.store: requeue.Store | None = None
        # A test that hangs ends the process, and shows where each thread waits.
        faulthandler.dump_traceback_later(120, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)
        # The tests run in asyncio's debug mode, which reports each slow step on a busy machine.
        asyncio.get_running_loop().slow_callback_duration = 60
        if self.engine is None:
            return
        if self.engine == "sqlite":
            directory = self.enterContext(tempfile.TemporaryDirectory())
            self.url = f"sqlite:{directory}/queues.db"
        else:
            self.url = server(self.engine)
        self.store = await self.enterAsyncContext(requeue.Store.connect(self.url))
        await self.store.migrate()

    async def open(self, **options: Any) -> Any:
        """Opens a new queue. Its methods must be awaited through `now`."""
        options.setdefault("backoff", SHORT)
        if self.store is None:
            return requeue.Queue(**options)
        return await self.store.queue(f"test-{os.getpid()}-{next(_names)}", **options)

    async def counts(self, queue: Any) -> requeue.StateCounts:
        return cast(
            requeue.StateCounts, await now(queue.states() if self.store is None else queue.counts())
        )
