"""Queues in memory: client-go's calls, and time that stands still."""

import asyncio
import unittest
from typing import Any

from support import Case

import requeue
from requeue import Added, FakeClock, Queue, Reason, State, StateCounts


class ClientGo(unittest.TestCase):
    """Calls that need no event loop."""

    def test_a_detached_key_is_completed_by_its_name(self) -> None:
        queue = Queue(client_go=True)
        self.assertEqual(queue.add("a"), Added.NEW)
        item = queue.try_get()
        assert item is not None
        key = item.detach()
        del item
        self.assertEqual(queue.add_rate_limited(key), Added.NEW)
        self.assertEqual((queue.num_requeues(key), queue.failures(key)), (1, 1))
        self.assertTrue(queue.done(key))
        self.assertFalse(queue.done(key))
        queue.forget(key)
        self.assertEqual(queue.num_requeues(key), 0)

    def test_a_shutdown_drops_what_waits(self) -> None:
        queue = Queue()
        queue.add_all(["a", "b"])
        queue.add("c", after=60)
        self.assertEqual(queue.shut_down(), ["c"])
        self.assertEqual(queue.add("d"), Added.REFUSED)
        self.assertEqual(len(queue), 2)

    def test_a_closed_queue_refuses_new_keys(self) -> None:
        queue = Queue(name="mail")
        self.assertTrue(queue)
        queue.close()
        self.assertTrue(queue.is_closed)
        self.assertFalse(queue.shutting_down)
        self.assertEqual(queue.add("a"), Added.REFUSED)
        self.assertEqual((queue.name, repr(queue)), ("mail", "<requeue.Queue 'mail'>"))

    def test_reasons_are_counted(self) -> None:
        queue = Queue()
        queue.add("a", reason="resync")
        queue.add("a", reason="an event", cause="pod/1")
        queue.add("a", reason="an event", cause="pod/2")
        expected = [Reason("resync", 1, None, None), Reason("an event", 2, "pod/1", "pod/2")]
        self.assertEqual(queue.reasons("a"), expected)
        item = queue.try_get()
        assert item is not None
        self.assertEqual(item.reasons, expected)
        with self.assertRaisesRegex(ValueError, "a `cause` needs a `reason`"):
            queue.add("a", cause="pod/1")

    def test_invalid_options_are_refused(self) -> None:
        invalid: list[tuple[str, dict[str, Any]]] = [
            ("limit", {"group_limit": 0}),
            ("pace", {"pace": (0, 1)}),
            ("oldest", {"oldest_every": 0}),
        ]
        for text, options in invalid:
            with self.assertRaisesRegex(ValueError, text):
                Queue(**options)
        with self.assertRaises(ValueError):
            Queue().pause_group("a")


class FakeTime(Case):
    """A clock that a test moves."""

    async def test_hold_an_add_waits_for_the_backoff(self) -> None:
        clock = FakeClock()
        queue = Queue(clock=clock, backoff=(5, 300), track_times=True)
        queue.add("a")
        item = queue.try_get()
        assert item is not None
        item.retry()
        self.assertEqual(queue.states(), StateCounts(backing_off=1))
        clock.advance(1)
        self.assertEqual(queue.add("a"), Added.BACKING_OFF)
        entry = queue.look_up("a")
        assert entry is not None and entry.due is not None
        self.assertEqual((entry.state, entry.failures, entry.since), (State.WAITING, 1, 1.0))
        self.assertTrue(1.5 <= entry.due <= 4)
        clock.advance(4)
        item = queue.try_get()
        assert item is not None
        self.assertEqual((item.attempt, item.adds), (2, 2))

    async def test_a_getter_waits_for_the_clock(self) -> None:
        clock = FakeClock()
        queue = Queue(clock=clock)
        queue.add("a", after=3600)
        self.assertEqual(queue.next_due(), 3600.0)
        getter = asyncio.ensure_future(queue.get())
        late = asyncio.ensure_future(queue.get(timeout=7200))
        while clock.armed() < 2:
            await asyncio.sleep(0)
        clock.advance(3600)
        item = await getter if getter.done() else None
        # One of the two getters has received the key.
        done, _ = await asyncio.wait({getter, late}, return_when=asyncio.FIRST_COMPLETED)
        item = done.pop().result()
        assert item is not None
        self.assertEqual(item.key, "a")
        item.succeed()
        queue.shut_down()
        await asyncio.gather(getter, late)

    async def test_a_timeout_returns_none(self) -> None:
        clock = FakeClock()
        queue = Queue(clock=clock)
        getter = asyncio.ensure_future(queue.get(timeout=10))
        while clock.armed() < 1:
            await asyncio.sleep(0)
        clock.advance(10)
        self.assertIsNone(await getter)

    async def test_debounce_each_add_postpones_the_run(self) -> None:
        clock = FakeClock()
        queue = Queue(clock=clock)
        self.assertEqual(queue.add("a", debounce=2), Added.NEW)
        clock.advance(1)
        self.assertEqual(queue.add("a", debounce=2), Added.COALESCED)
        clock.advance(1)
        self.assertIsNone(queue.try_get())
        clock.advance(1)
        item = queue.try_get()
        assert item is not None
        self.assertEqual(item.adds, 2)
        queue.add("b", debounce=60)
        self.assertEqual(queue.flush_debounced(), 1)

    async def test_pace_limits_the_starts_of_a_key(self) -> None:
        clock = FakeClock()
        queue = Queue(clock=clock, pace=(1, 10))
        queue.add("a")
        item = queue.try_get()
        assert item is not None
        item.succeed()
        queue.add("a")
        self.assertIsNone(queue.try_get())
        clock.advance(10)
        self.assertIsNotNone(queue.try_get())

    async def test_restart_an_add_cancels_the_run(self) -> None:
        queue = Queue(restart=30)
        queue.add("a")
        item = queue.try_get()
        assert item is not None
        self.assertEqual(queue.add("a"), Added.DIRTY)
        self.assertEqual(await item.cancelled(), requeue.CancelReason.RESTARTED)
        item.cancel()
        item = queue.try_get()
        assert item is not None
        self.assertEqual(item.adds, 2)

    async def test_a_drain_waits_for_the_runs(self) -> None:
        queue = Queue()
        queue.add_all(["a", "b"])
        queue.add("c", after=60)
        drain = asyncio.ensure_future(queue.shut_down_with_drain())
        for _ in range(2):
            item = await queue.get()
            assert item is not None
            item.succeed()
        drained = await drain
        self.assertTrue(drained.finished)
        self.assertEqual(drained.dropped, ["c"])

    async def test_groups_pause_and_cancel(self) -> None:
        queue = Queue(group_by="^([^/]*)/")
        queue.add_all(["a/1", "a/2", "b/1"])
        queue.pause_group("a")
        self.assertTrue(queue.is_group_paused("a"))
        item = queue.try_get()
        assert item is not None
        self.assertEqual(item.key, "b/1")
        self.assertIsNone(queue.try_get())
        entry = queue.look_up("a/1")
        assert entry is not None
        self.assertTrue(entry.throttled)
        self.assertEqual(queue.cancel_group("a"), 2)
        self.assertEqual(queue.cancel_running_group("b"), 1)
        self.assertEqual(queue.group_states("b").in_flight, 1)
        entries, after = queue.snapshot()
        self.assertEqual(([entry.key for entry in entries], after), (["b/1"], None))


if __name__ == "__main__":
    unittest.main()
