"""Durable queues in SQLite, PostgreSQL and Redis."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from . import _native
from ._convert import list_keys, sync_log_level, to_counts, to_entry, to_reason
from ._outcome import choose_completion
from ._types import (
    Added,
    Attempt,
    CancelledRun,
    CancelReason,
    Entry,
    GroupInfo,
    Key,
    Merge,
    ParkedAdd,
    QueueInfo,
    ReaddPolicy,
    ScheduleInfo,
    Seconds,
    State,
    StateCounts,
)


class Store:
    """A store of queues: a file, a database, or one or more servers."""

    def __init__(self, native: _native.Store) -> None:
        self._native = native
        self._queues: WeakSet[StoreQueue] = WeakSet()

    @classmethod
    def connect(cls, url: str) -> Connecting:
        """Connects to a store: `await Store.connect(url)`, or `async with Store.connect(url) as store`.

        - `sqlite:FILE`: a file, which is created if it does not exist.
        - `postgres://USER@HOST/DATABASE`: a PostgreSQL database.
        - `redis://HOST` or `rediss://HOST`: a Redis node, or any node of a cluster.
        """
        return Connecting(url)

    async def migrate(self) -> None:
        """Creates the schema, or upgrades it to this version. Repeating the call is harmless."""
        await self._native.migrate()

    async def queue(
        self,
        name: str,
        *,
        readd_policy: ReaddPolicy | str | None = None,
        parked_add: ParkedAdd | str | None = None,
        group_by: str | None = None,
        group_limit: int | None = None,
        rate: str | None = None,
        must_exist: bool = False,
        lease: Seconds | None = None,
        backoff: tuple[Seconds, Seconds] | None = None,
        max_failures: int | None = None,
        oldest_every: int | None = None,
        poll: Seconds | None = None,
        claim_ahead: int | None = None,
        add_timeout: Seconds | None = None,
        worker: str | None = None,
    ) -> StoreQueue:
        """Opens a queue. Creates a missing queue, unless `must_exist` is true.

        The first process that opens the queue chooses these settings for all processes:

        - `readd_policy`: the effect of an add on a key that waits or backs off.
        - `parked_add`: the effect of an add on a parked key.
        - `group_by`: a regular expression that extracts the group from a key. With an empty text, each add names the
          group.
        - `group_limit`: the limit of keys in flight of each group.
        - `rate`: the rate of starts, such as `100/h`.

        The other options are for this process:

        - `lease`: how long a key belongs to a process that no longer renews its lease.
        - `backoff=(base, max)`: the longest delay after the first failure, and after any failure.
        - `max_failures`: the number of consecutive failures after which a key is parked.
        - `oldest_every=n`: at least one of `n` deliveries takes the oldest key.
        - `poll`: the interval at which an idle process polls the queue.
        - `claim_ahead`: the limit of keys that are claimed before a worker asks for them.
        - `add_timeout`: how long an add waits for an unreachable store.
        - `worker`: the name of this process in the dashboard.
        """
        settings: dict[str, Any] = {
            "readd_policy": readd_policy,
            "parked_add": parked_add,
            "group_by": group_by,
            "group_limit": group_limit,
            "rate": rate,
            "must_exist": must_exist,
            "lease": lease,
            "backoff": backoff,
            "max_failures": max_failures,
            "oldest_every": oldest_every,
            "poll": poll,
            "claim_ahead": claim_ahead,
            "add_timeout": add_timeout,
            "worker": worker,
        }
        queue = StoreQueue(await self._native.queue(name, settings))
        self._queues.add(queue)
        return queue

    async def queues(self) -> list[QueueInfo]:
        """Returns all queues, sorted by name."""
        return [QueueInfo(**fields) for fields in await self._native.queues()]

    async def drop_queue(self, name: str) -> None:
        """Drops a queue that has neither keys nor schedules, for all processes."""
        await self._native.drop_queue(name)

    async def force_drop_queue(self, name: str) -> StateCounts:
        """Drops a queue with its schedules and all its keys, and returns the numbers of keys."""
        return to_counts(await self._native.force_drop_queue(name))

    async def close(self) -> None:
        """Shuts the queues of this store down in this process, waits until they are settled, and closes the store."""
        for queue in list(self._queues):
            queue.shut_down()
            await queue.settled()
        await self._native.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Connecting:
    """The result of `Store.connect`: an awaitable, and a context manager that closes the store."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Store | None = None

    async def _connect(self) -> Store:
        sync_log_level()
        return Store(await _native.Store.connect(self._url))

    def __await__(self) -> Generator[Any, None, Store]:
        return self._connect().__await__()

    async def __aenter__(self) -> Store:
        self._store = await self._connect()
        return self._store

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._store is not None:
            await self._store.close()


class StoreQueue:
    """A queue in a store. Other processes on any machine may have the same queue open."""

    def __init__(self, native: _native.StoreQueue) -> None:
        self._native = native

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._native.name()

    async def add(
        self,
        key: Key,
        *,
        after: Seconds | None = None,
        debounce: Seconds | None = None,
        at_most: Seconds | None = None,
        merge: Merge | str = Merge.EARLIEST,
        priority: int = 0,
        flags: int = 0,
        revive: bool = False,
        group: str | None = None,
    ) -> Added:
        """Adds a key. When the call returns, the add is as durable as the store promises.

        - `after` delays the run. `merge` combines this time with the due time that the key already has.
        - `debounce` delays the run until no add has followed for this time. `at_most` bounds the wait.
        - `priority` is low below 0 and high above 0. `flags` are bits that the run sees.
        - `revive` makes a parked key ready again, even if the queue keeps parked keys.
        - `group` names the group of the key.
        """
        arguments = _arguments(after, debounce, at_most, merge, priority, flags, revive, group)
        return Added(await self._native.add(key, arguments))

    async def add_all(
        self,
        keys: Iterable[Key],
        *,
        after: Seconds | None = None,
        debounce: Seconds | None = None,
        at_most: Seconds | None = None,
        merge: Merge | str = Merge.EARLIEST,
        priority: int = 0,
        flags: int = 0,
        revive: bool = False,
        group: str | None = None,
    ) -> list[Added]:
        """Adds keys with the same options, and returns the answers in the order of the keys.

        Up to 256 keys are sent together. After an error, some of the keys may have been added.
        """
        arguments = _arguments(after, debounce, at_most, merge, priority, flags, revive, group)
        added = await self._native.add_all(list_keys(keys), arguments)
        return [Added(answer) for answer in added]

    async def get(self) -> StoreItem | None:
        """Waits for the next key. Returns `None` if the queue is shut down in this process, or was dropped.

        If the task is cancelled, no key is lost.
        """
        item = await self._native.get()
        return None if item is None else StoreItem(item)

    async def get_many(self, max: int) -> list[StoreItem]:
        """Waits until a key is ready, and returns up to `max` keys. Returns no keys if the queue is shut down."""
        return [StoreItem(item) for item in await self._native.get_many(max)]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoreItem:
        # A generator would keep the item until the next key comes, even if the caller has dropped the item.
        item = await self.get()
        if item is None:
            raise StopAsyncIteration
        return item

    async def cancel(self, key: Key) -> bool:
        """Removes the pending run of a key, or a parked key. Returns true if there was one."""
        return await self._native.cancel(key)

    async def cancel_running(self, key: Key) -> CancelledRun:
        """Cancels the run of a key in flight, in any process."""
        return CancelledRun(await self._native.cancel_running(key))

    async def cancel_all(
        self, state: State | str | None = None, *, group: str | None = None
    ) -> int:
        """Cancels all keys, or those in a state or a group. Returns their number."""
        return await self._native.cancel_all(state, group)

    async def revive(self, key: Key) -> bool:
        """Makes a parked key ready again. Returns true if the key was parked."""
        return await self._native.revive(key)

    async def revive_all(self) -> int:
        """Makes all parked keys ready again, and returns their number."""
        return await self._native.revive_all()

    async def pause(self) -> None:
        """Pauses the queue for all processes."""
        await self._native.pause()

    async def resume(self) -> None:
        """Ends a pause."""
        await self._native.resume()

    async def is_paused(self) -> bool:
        """Returns true if the queue is paused."""
        return await self._native.is_paused()

    async def counts(self) -> StateCounts:
        """Returns the number of keys in each state."""
        return to_counts(await self._native.counts())

    async def look_up(self, key: Key) -> Entry | None:
        """Returns the state of a key."""
        fields = await self._native.look_up(key)
        return None if fields is None else to_entry(fields)

    async def snapshot(
        self, state: State | str | None = None, *, after: Key | None = None, limit: int = 100
    ) -> list[Entry]:
        """Returns a page of keys, in their order, from the key that follows `after`."""
        return [to_entry(fields) for fields in await self._native.snapshot(state, after, limit)]

    async def explain(self, key: Key) -> str:
        """Returns a sentence that says why a key waits."""
        return await self._native.explain(key)

    async def attempts(self, key: Key) -> list[Attempt]:
        """Returns the last failed runs of a key."""
        return [Attempt(**fields) for fields in await self._native.attempts(key)]

    async def groups(self, *, after: str | None = None, limit: int = 100) -> list[GroupInfo]:
        """Returns a page of groups, from the group that follows `after`."""
        groups = await self._native.groups(after, limit)
        return [
            GroupInfo(**(fields | {"counts": to_counts(fields["counts"])})) for fields in groups
        ]

    async def set_group_limit(self, limit: int | None, *, group: str | None = None) -> None:
        """Sets the limit of keys in flight of each group, or of one group."""
        await self._native.set_group_limit(group, limit)

    async def set_rate(self, rate: str | None, *, group: str | None = None) -> None:
        """Sets the rate of starts of the queue, or of one group, such as `100/h`."""
        await self._native.set_rate(group, rate)

    async def set_group_weight(self, group: str, weight: int) -> None:
        """Sets the number of keys that one turn of a group delivers."""
        await self._native.set_group_weight(group, weight)

    async def pause_group(self, group: str) -> None:
        """Stops the deliveries of a group for all processes."""
        await self._native.pause_group(group)

    async def resume_group(self, group: str) -> None:
        """Ends the pause of a group."""
        await self._native.resume_group(group)

    async def schedule(
        self,
        key: Key,
        spec: str,
        *,
        zone: str | None = None,
        priority: int = 0,
        group: str | None = None,
    ) -> None:
        """Adds a key at the times of a cron expression, or after each period, such as `every 5m`."""
        await self._native.schedule(key, spec, zone, priority, group)

    async def unschedule(self, key: Key) -> bool:
        """Removes the schedule of a key. Returns true if there was one."""
        return await self._native.unschedule(key)

    async def pause_schedule(self, key: Key) -> bool:
        """Pauses the schedule of a key. Returns true if there is one."""
        return await self._native.pause_schedule(key)

    async def resume_schedule(self, key: Key) -> bool:
        """Ends the pause of a schedule. Returns true if there is one."""
        return await self._native.resume_schedule(key)

    async def schedules(self, *, after: Key | None = None, limit: int = 100) -> list[ScheduleInfo]:
        """Returns a page of schedules, from the key that follows `after`."""
        return [ScheduleInfo(**fields) for fields in await self._native.schedules(after, limit)]

    def shut_down(self) -> None:
        """Stops deliveries in this process. Items that this process holds can still be completed."""
        self._native.shut_down()

    def shut_down_when_idle(self) -> None:
        """Shuts the queue down in this process when no key is ready, waiting or in flight in any process."""
        self._native.shut_down_when_idle()

    @property
    def shutting_down(self) -> bool:
        """True if the queue is shut down in this process."""
        return self._native.shutting_down()

    @property
    def is_dropped(self) -> bool:
        """True if this process has found that the queue was dropped."""
        return self._native.is_dropped()

    async def settled(self) -> None:
        """Waits until the queue is shut down in this process, and the store has answered all requests."""
        await self._native.settled()

    def __repr__(self) -> str:
        return f"<requeue.StoreQueue {self.name!r}>"


def _arguments(
    after: Seconds | None,
    debounce: Seconds | None,
    at_most: Seconds | None,
    merge: str,
    priority: int,
    flags: int,
    revive: bool,
    group: str | None,
) -> dict[str, Any] | None:
    """Returns the arguments of an add, or `None` for the defaults."""
    arguments = {
        "after": after,
        "debounce": debounce,
        "at_most": at_most,
        "merge": merge,
        "priority": priority,
        "flags": flags,
        "revive": revive,
        "group": group,
    }
    return None if arguments == _DEFAULTS else arguments


_DEFAULTS: dict[str, Any] = {
    "after": None,
    "debounce": None,
    "at_most": None,
    "merge": Merge.EARLIEST,
    "priority": 0,
    "flags": 0,
    "revive": False,
    "group": None,
}


class StoreItem:
    """A key in flight. An item that is dropped before its completion has failed.

    The lease is renewed as long as the item exists. `async with item:` completes the item: with a success, or with the
    failure that an exception stands for. Each completion returns true if it has parked the key.
    """

    __slots__ = (
        "_native",
        "adds",
        "attempt",
        "fencing_token",
        "flags",
        "key",
        "priority",
    )

    key: str
    attempt: int
    """1 plus the number of consecutive failures."""
    adds: int
    """The number of adds that this run serves."""
    flags: int
    """The flags of these adds, combined by bitwise or."""
    priority: int
    """The highest priority of these adds: -1, 0 or 1."""
    fencing_token: int
    """A number that is greater for each later delivery of the key. Other systems can reject late writes by it."""

    def __init__(self, native: _native.StoreItem) -> None:
        self._native = native
        self.key, delivery = native.receive()
        self.attempt, self.adds, self.flags, self.priority, _, self.fencing_token = delivery

    @property
    def group(self) -> str | None:
        """The name of the group."""
        return self._native.group()

    @property
    def is_lost(self) -> bool:
        """True if the lease is lost, so that another worker may have the key."""
        return self._native.is_lost()

    @property
    def cancel_reason(self) -> CancelReason | None:
        """The reason why the run was cancelled."""
        return to_reason(self._native.cancel_reason())

    async def cancelled(self) -> CancelReason:
        """Waits until the run is cancelled or the lease is lost."""
        return CancelReason(await self._native.cancelled())

    def set_priority(self, priority: int) -> None:
        """Sets the priority of the key's next run, if the completion causes a run."""
        self._native.set_priority(priority)

    async def succeed(self) -> bool:
        """The run succeeded. The key's failures are forgotten."""
        return await self._native.complete("succeed", None, None)

    async def requeue_after(self, delay: Seconds) -> bool:
        """The run succeeded, and the key is added again after `delay`."""
        return await self._native.complete("requeue_after", delay, None)

    async def retry(self, error: object) -> bool:
        """The run failed with this error, and is retried after the backoff."""
        return await self._native.complete("retry", None, str(error))

    async def retry_after(self, delay: Seconds, error: object) -> bool:
        """The run failed with this error, and is retried after `delay`."""
        return await self._native.complete("retry_after", delay, str(error))

    async def give_up(self, error: object) -> bool:
        """The run failed with this error, and the key is parked."""
        return await self._native.complete("give_up", None, str(error))

    async def release(self) -> bool:
        """Undoes the delivery. No failure is counted."""
        return await self._native.complete("release", None, None)

    async def cancel(self) -> bool:
        """The run was cancelled, and has stopped before its end."""
        return await self._native.complete("cancelled", None, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            is_cancelled = self._native.cancel_reason() is not None
        except RuntimeError:
            return  # The item was completed in the `with` block.
        if error is None:
            await self.succeed()
        else:
            completion, delay, text = choose_completion(error, is_cancelled)
            await self._native.complete(completion, delay, text)

    def __repr__(self) -> str:
        return f"<requeue.StoreItem {self.key!r}, attempt {self.attempt}>"
