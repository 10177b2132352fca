"""Calls that only stores have."""

import asyncio
import unittest
from typing import Any

from support import Case

import requeue
from requeue import AddError, ConnectError, OpenError, State, UpdateError


class Stored:
    """The tests of all engines."""

    async def test_a_parked_key_is_revived(self: Any) -> None:
        queue = await self.open(max_failures=1)
        await queue.add("a")
        self.assertTrue(await (await queue.get()).retry("no answer"))
        (entry,) = await queue.snapshot(State.PARKED)
        self.assertEqual((entry.key, entry.error), ("a", "no answer"))
        (attempt,) = await queue.attempts("a")
        self.assertEqual((attempt.number, attempt.error), (1, "no answer"))
        self.assertTrue(await queue.revive("a"))
        self.assertFalse(await queue.revive("a"))
        self.assertEqual(await queue.revive_all(), 0)
        item = await queue.get()
        self.assertEqual(item.attempt, 1)
        self.assertFalse(await item.succeed())

    async def test_each_add_may_name_its_group(self: Any) -> None:
        queue = await self.open(group_by="", group_limit=1)
        await queue.add_all(["1", "2"], group="acme")
        await queue.add("3", group="zeta")
        items = await queue.get_many(10)
        self.assertEqual([(item.key, item.group) for item in items], [("1", "acme"), ("3", "zeta")])
        await queue.set_group_limit(5, group="acme")
        await queue.set_group_weight("acme", 2)
        await queue.set_rate("1000/h", group="acme")
        await queue.pause_group("acme")
        acme, _ = await queue.groups()
        self.assertEqual((acme.name, acme.limit, acme.weight, acme.is_paused), ("acme", 5, 2, True))
        self.assertEqual((acme.counts.ready, acme.counts.in_flight), (1, 1))
        self.assertIn("1000/h", acme.rate)
        await queue.resume_group("acme")
        self.assertEqual(await queue.cancel_all(group="acme"), 1)

    async def test_schedules(self: Any) -> None:
        queue = await self.open()
        await queue.schedule("report", "0 3 * * *", zone="Europe/Berlin")
        (schedule,) = await queue.schedules()
        self.assertEqual((schedule.key, schedule.zone), ("report", "Europe/Berlin"))
        self.assertTrue(await queue.pause_schedule("report"))
        self.assertTrue(await queue.resume_schedule("report"))
        self.assertTrue(await queue.unschedule("report"))
        self.assertFalse(await queue.unschedule("report"))
        with self.assertRaises(ValueError):
            await queue.schedule("report", "sometimes")

    async def test_errors_have_a_kind(self: Any) -> None:
        queue = await self.open()
        await queue.add("a")
        self.assertFalse(queue.is_dropped)
        with self.assertRaises(UpdateError) as caught:
            await self.store.drop_queue(queue.name)
        self.assertEqual(caught.exception.kind, "has_keys")
        self.assertIn("it has keys (1 ready", str(caught.exception))
        self.assertEqual((await self.store.force_drop_queue(queue.name)).ready, 1)
        with self.assertRaises(AddError) as lost:
            await queue.add("b")
        self.assertEqual(
            (lost.exception.kind, lost.exception.may_have_happened), ("dropped", False)
        )
        with self.assertRaises(OpenError) as missing:
            await self.store.queue(queue.name, must_exist=True)
        self.assertEqual(missing.exception.kind, "missing")
        with self.assertRaisesRegex(ValueError, "invalid name: use 1 to 200 bytes without NUL"):
            await self.store.queue("")

    async def test_a_queue_is_listed(self: Any) -> None:
        queue = await self.open(rate="10/s")
        (info,) = [info for info in await self.store.queues() if info.name == queue.name]
        self.assertEqual((info.is_empty, info.is_paused), (True, False))
        self.assertIn("10/s", info.rate)

    async def test_many_tasks_add(self: Any) -> None:
        queue = await self.open()
        await asyncio.gather(*(queue.add(f"{n}") for n in range(200)))
        self.assertEqual((await queue.counts()).ready, 200)


class Sqlite(Stored, Case):
    engine = "sqlite"

    async def test_a_wrong_address_is_bad_input(self) -> None:
        with self.assertRaisesRegex(
            ValueError, 'unknown option "sync"; the options are synchronous'
        ):
            await requeue.Store.connect("sqlite:jobs.db?sync=full")

    async def test_an_unreachable_store_has_its_own_error(self) -> None:
        with self.assertRaises(ConnectError) as caught:
            await requeue.Store.connect("sqlite:/no/such/directory/queues.db")
        self.assertIsInstance(caught.exception, requeue.StoreError)


class Postgres(Stored, Case):
    engine = "postgres"


class Redis(Stored, Case):
    engine = "redis"


if __name__ == "__main__":
    unittest.main()
