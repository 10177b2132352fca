"""The rules of docs/concepts/semantics.md, on each engine."""

import asyncio
import math
import unittest
from datetime import timedelta
from typing import Any

from support import LONG, Case, now

from requeue import Added, CancelledRun, CancelReason, RetryAfter, State, TerminalError


class Semantics:
    """The tests of all engines."""

    async def test_adds_of_one_key_are_coalesced(self: Any) -> None:
        queue = await self.open()
        self.assertEqual(await now(queue.add("a", flags=0b01)), Added.NEW)
        self.assertEqual(await now(queue.add("a", flags=0b10)), Added.COALESCED)
        item = await queue.get()
        self.assertEqual((item.key, item.adds, item.flags, item.attempt), ("a", 2, 0b11, 1))
        await now(item.succeed())
        self.assertIsNone(await now(queue.look_up("a")))

    async def test_a_key_in_flight_is_dirty_and_runs_once_more(self: Any) -> None:
        queue = await self.open()
        await now(queue.add("a"))
        first = await queue.get()
        self.assertEqual(await now(queue.add("a")), Added.DIRTY)
        await now(queue.add("b"))
        # The key in flight is not delivered again.
        second = await queue.get()
        self.assertEqual(second.key, "b")
        counts = await self.counts(queue)
        self.assertEqual((counts.ready, counts.in_flight, counts.dirty), (0, 2, 1))
        await now(first.succeed())
        again = await queue.get()
        self.assertEqual((again.key, again.attempt), ("a", 1))
        self.assertGreater(again.fencing_token, first.fencing_token)
        await now(second.succeed())
        await now(again.succeed())

    async def test_a_failure_is_retried_and_a_success_forgets_it(self: Any) -> None:
        queue = await self.open()
        await now(queue.add("a"))
        for attempt in (1, 2, 3):
            item = await queue.get()
            self.assertEqual(item.attempt, attempt)
            await now(item.retry() if self.store is None else item.retry("no answer"))
        await now((await queue.get()).succeed())
        await now(queue.add("a"))
        self.assertEqual((await queue.get()).attempt, 1)

    async def test_an_add_waits_for_the_backoff(self: Any) -> None:
        queue = await self.open(backoff=LONG)
        await now(queue.add("a"))
        await now((await queue.get()).retry_after(3600, *self.error()))
        self.assertEqual(await now(queue.add("a")), Added.BACKING_OFF)
        entry = await now(queue.look_up("a"))
        self.assertEqual((entry.state, entry.failures), (State.WAITING, 1))
        self.assertGreater(entry.due, 3000)

    async def test_replace_an_add_ends_the_backoff(self: Any) -> None:
        queue = await self.open(backoff=LONG, readd_policy="replace")
        await now(queue.add("a"))
        await now((await queue.get()).retry_after(3600, *self.error()))
        self.assertEqual(await now(queue.add("a")), Added.NEW)
        self.assertEqual((await queue.get()).attempt, 2)

    async def test_an_item_that_is_dropped_has_failed(self: Any) -> None:
        queue = await self.open()
        await now(queue.add("a"))
        for attempt in range(1, 20):
            item = await queue.get()
            self.assertEqual(item.attempt, attempt)
            # No native call follows, which would release an item that the bridge still holds.
            del item
        await now((await queue.get()).succeed())

    async def test_a_release_is_no_failure(self: Any) -> None:
        queue = await self.open(backoff=LONG)
        await now(queue.add("a"))
        await now((await queue.get()).release())
        self.assertEqual((await queue.get()).attempt, 1)

    async def test_a_second_completion_raises(self: Any) -> None:
        queue = await self.open()
        await now(queue.add("a"))
        item = await queue.get()
        await now(item.succeed())
        with self.assertRaisesRegex(RuntimeError, "already completed"):
            await now(item.succeed())

    async def test_delays_and_merges(self: Any) -> None:
        queue = await self.open()
        for delay, merge, due in (
            (timedelta(hours=1), "earliest", 3600),
            (7200, "earliest", 3600),
            (7200, "latest", 7200),
            (1800, "latest", 7200),
            (5400, "exactly", 5400),
        ):
            await now(queue.add("a", after=delay, merge=merge))
            entry = await now(queue.look_up("a"))
            self.assertTrue(due - 600 < entry.due <= due + 1, (delay, merge, entry))
        await now(queue.add("a"))
        await now((await queue.get()).requeue_after(math.inf))
        counts = await self.counts(queue)
        self.assertEqual((counts.waiting, counts.ready), (1, 0))

    async def test_a_debounced_add_postpones_the_run(self: Any) -> None:
        queue = await self.open()
        await now(queue.add("a", debounce=1000))
        await now(queue.add("a", debounce=3000, at_most=7200))
        entry = await now(queue.look_up("a"))
        self.assertGreater(entry.due, 1500)
        self.assertEqual(await now(queue.add("a")), Added.NEW)
        self.assertEqual((await queue.get()).adds, 3)

    async def test_higher_priorities_leave_first(self: Any) -> None:
        queue = await self.open(oldest_every=100)
        for key, priority in (("low", -1), ("normal", 0), ("high", 1)):
            await now(queue.add(key, priority=priority))
        items = await queue.get_many(10)
        self.assertEqual([item.key for item in items], ["high", "normal", "low"])
        self.assertEqual([item.priority for item in items], [1, 0, -1])

    async def test_cancel_removes_the_pending_run(self: Any) -> None:
        queue = await self.open()
        await now(queue.add("a"))
        self.assertTrue(await now(queue.cancel("a")))
        self.assertFalse(await now(queue.cancel("a")))
        self.assertIsNone(await now(queue.look_up("a")))

    async def test_cancel_running_asks_the_run_to_stop(self: Any) -> None:
        queue = await self.open()
        self.assertEqual(await now(queue.cancel_running("a")), CancelledRun.NOT_IN_FLIGHT)
        await now(queue.add("a"))
        item = await queue.get()
        self.assertIsNone(item.cancel_reason)
        self.assertEqual(await now(queue.cancel_running("a")), CancelledRun.CANCELLED)
        self.assertEqual(await item.cancelled(), CancelReason.CANCELLED)
        self.assertEqual(item.cancel_reason, CancelReason.CANCELLED)
        await now(item.cancel())
        self.assertIsNone(await now(queue.look_up("a")))

    async def test_a_paused_queue_delivers_nothing(self: Any) -> None:
        queue = await self.open()
        await now(queue.pause())
        await now(queue.add("a"))
        self.assertIn("pause", await now(queue.explain("a")))
        getter = asyncio.ensure_future(queue.get())
        await now(queue.resume())
        self.assertEqual((await getter).key, "a")

    async def test_groups_take_turns_and_have_a_limit(self: Any) -> None:
        options = {"group_by": "^[^/]*", "group_limit": 2}
        if self.store is None:
            options["fair"] = True
        queue = await self.open(**options)
        await now(queue.add_all(["acme/1", "acme/2", "acme/3", "zeta/1"]))
        items = await queue.get_many(10)
        self.assertEqual([item.key for item in items], ["acme/1", "zeta/1", "acme/2"])
        await now(items[0].succeed())
        self.assertEqual((await queue.get()).key, "acme/3")

    async def test_a_getter_that_is_cancelled_loses_no_key(self: Any) -> None:
        queue = await self.open(backoff=LONG)
        for round in range(20):
            getter = asyncio.ensure_future(queue.get())
            # In some rounds, the key is on its way to the getter.
            await now(queue.add(f"{round}"))
            for _ in range(round % 4):
                await asyncio.sleep(0)
            getter.cancel()
            try:
                item = await getter
            except asyncio.CancelledError:
                item = await queue.get()
            self.assertEqual((item.key, item.attempt), (f"{round}", 1))
            await now(item.succeed())

    async def test_keys_are_text_or_bytes(self: Any) -> None:
        queue = await self.open()
        self.assertEqual(await now(queue.add(b"caf\xc3\xa9")), Added.NEW)
        self.assertEqual(await now(queue.add("café")), Added.COALESCED)
        self.assertEqual(await now(queue.add(b"\xff")), Added.NEW)
        keys = [item.key for item in await queue.get_many(2)]
        self.assertEqual(sorted(keys), ["café", "\udcff"])
        self.assertEqual((await now(queue.look_up("\udcff"))).key, "\udcff")
        with self.assertRaisesRegex(TypeError, "a key is a str or bytes, not int"):
            await now(queue.add(7))
        with self.assertRaisesRegex(TypeError, "not one key"):
            await now(queue.add_all("ab"))

    async def test_bad_input_is_a_value_error(self: Any) -> None:
        queue = await self.open()
        for options, text in (
            ({"after": -1}, "at least 0 s"),
            ({"after": math.nan}, "at least 0 s"),
            ({"after": 1, "debounce": 1}, "not both"),
            ({"merge": "sometimes"}, 'merge="sometimes": expected earliest, latest or exactly'),
        ):
            with self.assertRaisesRegex(ValueError, text):
                await now(queue.add("a", **options))
        with self.assertRaisesRegex(ValueError, "expected hold, replace or keep_both"):
            await self.open(readd_policy="never")
        with self.assertRaises(ValueError):
            await self.open(group_by="(")

    async def test_a_block_completes_its_item(self: Any) -> None:
        queue = await self.open()
        await now(queue.add("a"))
        for error, attempt in (
            (RuntimeError("broken"), 1),
            (RetryAfter(0, "busy"), 2),
            (asyncio.CancelledError(), 3),
        ):
            item = await queue.get()
            self.assertEqual(item.attempt, attempt)
            with self.assertRaises(type(error)):
                await self.run_block(item, error)
        item = await queue.get()
        self.assertEqual(item.attempt, 3)
        await self.run_block(item, None)
        self.assertIsNone(await now(queue.look_up("a")))

        await now(queue.add("b"))
        with self.assertRaises(TerminalError):
            await self.run_block(await queue.get(), TerminalError("hopeless"))
        if self.store is not None:
            entry = await queue.look_up("b")
            self.assertEqual((entry.state, entry.error), (State.PARKED, "hopeless"))

    async def run_block(self: Any, item: Any, error: BaseException | None) -> None:
        if self.store is None:
            with item:
                if error is not None:
                    raise error
        else:
            async with item:
                if error is not None:
                    raise error

    async def test_a_loop_ends_after_the_shutdown(self: Any) -> None:
        queue = await self.open()
        await now(queue.add_all(["a", "b"]))
        seen = []
        async for item in queue:
            seen.append((item.key, item.attempt))
            if len(seen) == 3:
                queue.shut_down()
            if len(seen) == 1:
                # The `async for` loop must not keep an item that its body has dropped.
                del item
            else:
                await now(item.succeed())
        self.assertEqual(sorted(seen), [("a", 1), ("a", 2), ("b", 1)])
        self.assertTrue(queue.shutting_down)

    def error(self: Any) -> list[str]:
        """The error of a failure, which a store keeps."""
        return [] if self.store is None else ["no answer"]


class Memory(Semantics, Case):
    pass


class Sqlite(Semantics, Case):
    engine = "sqlite"


class Postgres(Semantics, Case):
    engine = "postgres"


class Redis(Semantics, Case):
    engine = "redis"


if __name__ == "__main__":
    unittest.main()
