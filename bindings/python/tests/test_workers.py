"""Workers, on a queue in memory and in a store."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from typing import Any

from support import LONG, Case, now

import requeue
from requeue import Action, CancelReason, Context, RetryAfter, TerminalError, Workers


class Running:
    """The tests of all engines."""

    async def asyncSetUp(self: Any) -> None:
        await super().asyncSetUp()  # type: ignore[misc]
        logging.getLogger("requeue.workers").disabled = True
        self.addCleanup(setattr, logging.getLogger("requeue.workers"), "disabled", False)

    def finish(self: Any, queue: Any) -> None:
        """Lets the workers end when no key is left."""
        queue.close() if self.store is None else queue.shut_down_when_idle()

    async def test_a_handler_runs_for_each_key_several_at_a_time(self: Any) -> None:
        queue = await self.open()
        await now(queue.add_all([f"{n}" for n in range(30)]))
        seen: list[str] = []
        gate = asyncio.Barrier(3)

        async def handle(key: str) -> None:
            # Three runs wait for each other, so they are in flight simultaneously.
            await gate.wait()
            seen.append(key)

        self.finish(queue)
        drained = await Workers(queue, handle, concurrency=3).run()
        self.assertTrue(drained.finished)
        self.assertEqual(sorted(seen, key=int), [f"{n}" for n in range(30)])

    async def test_exceptions_choose_the_retry(self: Any) -> None:
        queue = await self.open()
        await now(queue.add("a", flags=4))
        runs: list[tuple[int, bool, int]] = []
        given_up: list[tuple[str, str]] = []

        async def handle(key: str, context: Context) -> Action:
            self.assertEqual((key, context.key, context.cancel_reason), ("a", "a", None))
            runs.append((context.attempt, context.is_last_attempt, context.flags))
            match len(runs):
                case 1:
                    raise OSError("no route")
                case 2:
                    raise RetryAfter(0, "busy")
                case 3:
                    return Action.release()
                case _:
                    raise TerminalError("hopeless")

        self.finish(queue)
        workers = Workers(
            queue, handle, max_retries=5, on_give_up=lambda *event: given_up.append(event)
        )
        await workers.run()
        self.assertEqual(runs, [(attempt, False, 4) for attempt in (1, 2, 3, 3)])
        self.assertEqual(given_up, [("a", "hopeless")])

    async def test_max_retries_gives_a_key_up(self: Any) -> None:
        queue = await self.open()
        await now(queue.add("a"))
        given_up: list[tuple[str, str]] = []

        async def handle(key: str) -> None:
            raise ValueError("no such host")

        self.finish(queue)
        workers = Workers(
            queue, handle, max_retries=2, on_give_up=lambda *event: given_up.append(event)
        )
        await workers.run()
        self.assertEqual(given_up, [("a", "ValueError: no such host")])
        if self.store is not None:
            entry = await queue.look_up("a")
            self.assertEqual((entry.state, entry.failures), ("parked", 3))
            self.assertEqual(entry.error, "ValueError: no such host")

    async def test_an_unknown_result_is_a_failure(self: Any) -> None:
        queue = await self.open()
        await now(queue.add("a"))
        errors: list[str] = []

        async def handle(key: str) -> Any:
            return "done"

        self.finish(queue)
        await Workers(
            queue, handle, max_retries=0, on_give_up=lambda key, error: errors.append(error)
        ).run()
        self.assertEqual(errors, ["TypeError: a handler returns None or a requeue.Action, not str"])

    async def test_a_cancelled_error_releases_the_key(self: Any) -> None:
        queue = await self.open(backoff=LONG)
        await now(queue.add("a"))
        attempts: list[int] = []

        async def handle(key: str, context: Context) -> None:
            attempts.append(context.attempt)
            if len(attempts) == 1:
                raise asyncio.CancelledError

        self.finish(queue)
        await Workers(queue, handle).run()
        self.assertEqual(attempts, [1, 1])

    async def test_cancel_running_cancels_the_task(self: Any) -> None:
        queue = await self.open(backoff=LONG)
        await now(queue.add("a"))
        reasons: list[CancelReason | None] = []
        started = asyncio.Event()

        async def handle(key: str, context: Context) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                reasons.append(context.cancel_reason)

        self.finish(queue)
        running = asyncio.create_task(Workers(queue, handle).run())
        await started.wait()
        await now(queue.cancel_running("a"))
        await running
        self.assertEqual(reasons, [CancelReason.CANCELLED])
        self.assertIsNone(await now(queue.look_up("a")))

    async def test_a_blocking_handler_runs_on_threads(self: Any) -> None:
        queue = await self.open()
        await now(queue.add_all([f"{n}" for n in range(6)]))
        main = threading.get_ident()
        gate = threading.Barrier(2)
        threads: list[int] = []

        def handle(key: str) -> None:
            gate.wait()
            threads.append(threading.get_ident())

        self.finish(queue)
        await Workers(queue, handle, concurrency=2).run()
        self.assertEqual(len(threads), 6)
        self.assertNotIn(main, threads)

    async def test_a_blocking_handler_sees_its_cancellation(self: Any) -> None:
        queue = await self.open(backoff=LONG)
        await now(queue.add("a"))
        started = threading.Event()

        def handle(key: str, context: Context) -> Action:
            started.set()
            while context.cancel_reason is None:
                pass
            return Action.cancelled()

        self.finish(queue)
        running = asyncio.create_task(Workers(queue, handle).run())
        await asyncio.to_thread(started.wait)
        await now(queue.cancel_running("a"))
        await running
        self.assertIsNone(await now(queue.look_up("a")))

    async def test_workers_that_are_cancelled_release_their_keys(self: Any) -> None:
        queue = await self.open(backoff=LONG)
        await now(queue.add_all(["a", "b", "c"]))
        started = asyncio.Semaphore(0)

        async def handle(key: str) -> None:
            started.release()
            await asyncio.Event().wait()

        running = asyncio.create_task(Workers(queue, handle, concurrency=2).run())
        await started.acquire()
        await started.acquire()
        running.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await running
        # The queue is open, and no run counts as a failure.
        self.assertFalse(queue.shutting_down)
        items = [await queue.get() for _ in range(3)]
        self.assertEqual(sorted(item.key for item in items), ["a", "b", "c"])
        self.assertEqual([item.attempt for item in items], [1, 1, 1])

    async def test_a_shutdown_lets_the_runs_complete(self: Any) -> None:
        queue = await self.open()
        await now(queue.add("a"))
        started, may_end = asyncio.Event(), asyncio.Event()

        async def handle(key: str) -> None:
            started.set()
            await may_end.wait()

        workers = Workers(queue, handle)
        running = asyncio.create_task(workers.run())
        await started.wait()
        workers.shut_down()
        may_end.set()
        self.assertTrue((await running).finished)
        self.assertTrue(queue.shutting_down)
        self.assertIsNone(await now(queue.look_up("a")))
        with self.assertRaisesRegex(RuntimeError, "run already"):
            await workers.run()

    async def test_the_decorator_keeps_the_function(self: Any) -> None:
        seen: list[str] = []

        @requeue.handler(concurrency=2)
        async def handle(key: str) -> None:
            """Handles."""
            seen.append(key)

        self.assertEqual((handle.__name__, handle.__doc__), ("handle", "Handles."))
        await handle("x")
        queue = await self.open()
        await now(queue.add("a"))
        self.finish(queue)
        await handle.run(queue)
        self.assertEqual(seen, ["x", "a"])

    async def test_many_keys_run(self: Any) -> None:
        queue = await self.open()
        keys = [f"{n}" for n in range(2000)]
        await now(queue.add_all(keys))
        seen: list[str] = []

        async def handle(key: str) -> None:
            seen.append(key)

        self.finish(queue)
        await Workers(queue, handle, concurrency=100).run()
        self.assertEqual(sorted(seen), sorted(keys))


class Memory(Running, Case):
    async def test_a_time_limit_cancels_the_task(self) -> None:
        clock = requeue.FakeClock()
        queue = requeue.Queue(clock=clock)
        queue.add("a")
        queue.close()
        started = asyncio.Event()
        reasons: list[CancelReason | None] = []
        errors: list[str] = []

        async def handle(key: str, context: Context) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                reasons.append(context.cancel_reason)

        workers = Workers(
            queue,
            handle,
            timeout=60,
            max_retries=0,
            on_give_up=lambda key, error: errors.append(error),
        )
        running = asyncio.create_task(workers.run())
        await started.wait()
        clock.advance(60)
        await running
        self.assertEqual(reasons, [CancelReason.TIMED_OUT])
        self.assertEqual(len(errors), 1)

    async def test_invalid_options_are_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "expected at least 1"):
            Workers(requeue.Queue(), print, concurrency=0)
        with self.assertRaisesRegex(ValueError, "at least 0 s"):
            await Workers(requeue.Queue(), print, timeout=-1).run()


class Sqlite(Running, Case):
    engine = "sqlite"

    async def test_a_parked_key_is_logged(self) -> None:
        logged: asyncio.Queue[logging.LogRecord] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                loop.call_soon_threadsafe(logged.put_nowait, record)

        handler = Handler()
        logger = logging.getLogger("requeue.store")
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)
        logger.propagate = False
        self.addCleanup(setattr, logger, "propagate", True)

        queue = await self.open()
        await queue.add("alice")
        item = await queue.get()
        self.assertTrue(await item.give_up("no such host"))
        record = await logged.get()
        self.assertEqual((record.name, record.levelno), ("requeue.store.parked", logging.WARNING))
        self.assertIn("alice", record.getMessage())
        self.assertIn("no such host", record.getMessage())


class Interrupt(unittest.TestCase):
    PROGRAM = """
import asyncio, sys, requeue

async def handle(key):
    print("started", flush=True)
    await asyncio.Event().wait()

async def main():
    async with requeue.Store.connect(sys.argv[1]) as store:
        await store.migrate()
        queue = await store.queue("mail")
        await queue.add("alice")
        await requeue.Workers(queue, handle).run()

asyncio.run(main())
"""

    def test_ctrl_c_releases_the_keys_and_ends_the_process(self) -> None:
        directory = self.enterContext(tempfile.TemporaryDirectory())
        url = f"sqlite:{directory}/queues.db"
        process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM, url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        with process:
            assert process.stdout is not None and process.stderr is not None
            self.assertEqual(process.stdout.readline(), "started\n")
            process.send_signal(signal.SIGINT)
            error = process.stderr.read()
        self.assertEqual(process.returncode, -signal.SIGINT, error)
        self.assertIn("KeyboardInterrupt", error)

        async def look() -> requeue.Entry | None:
            async with requeue.Store.connect(url) as store:
                return await (await store.queue("mail")).look_up("alice")

        entry = asyncio.run(look())
        assert entry is not None
        self.assertEqual((entry.state, entry.failures), ("ready", 0))


if __name__ == "__main__":
    unittest.main()
