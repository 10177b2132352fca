"""A queue in memory. Only `get`, `get_many` and the drain wait. All other calls return immediately."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from . import _native
from ._convert import list_keys, sync_log_level, to_counts, to_entry, to_reason, to_reasons
from ._outcome import choose_completion
from ._types import (
    Added,
    CancelledRun,
    CancelReason,
    Drained,
    Entry,
    Key,
    Merge,
    ReaddPolicy,
    Reason,
    Seconds,
    StateCounts,
)


class Queue:
    """A queue in memory.

    A queue belongs to no event loop: threads and tasks may share it. `await queue.get()` and `async for item in queue`
    deliver keys. `requeue.Workers` runs a handler for each key.

    - `client_go` selects client-go's rule for re-adds and its default limiter.
    - `readd_policy` is the effect of an add on a key that waits or backs off.
    - `restart` makes an add cancel the run in flight of its key. The value limits a series of restarts.
    - `pace=(runs, per)` limits how often one key runs.
    - `oldest_every=n` delivers keys by priority. At least one of `n` deliveries takes the oldest key.
    - `group_by` is a regular expression of Rust's crate `regex`. Its first capture, or the whole match, is the group
      of a key. `fair` lets groups take turns, and `group_limit` limits the keys of a group in flight.
    - `backoff=(base, max)` is the longest delay after the first failure, and after any failure.
    - `track_times` keeps times for `Item.queued` and `Entry.since`.
    - `clock` is a `FakeClock` in tests.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        client_go: bool = False,
        readd_policy: ReaddPolicy | str | None = None,
        restart: Seconds | None = None,
        pace: tuple[int, Seconds] | None = None,
        oldest_every: int | None = None,
        group_by: str | None = None,
        fair: bool = False,
        group_limit: int | None = None,
        backoff: tuple[Seconds, Seconds] | None = None,
        track_times: bool = False,
        clock: _native.FakeClock | None = None,
    ) -> None:
        sync_log_level()
        self._name = name
        self._native = _native.MemoryQueue(
            {
                "name": name,
                "client_go": client_go,
                "readd_policy": readd_policy,
                "restart": restart,
                "pace": pace,
                "oldest_every": oldest_every,
                "group_by": group_by,
                "fair": fair,
                "group_limit": group_limit,
                "backoff": backoff,
                "track_times": track_times,
                "clock": clock,
            }
        )

    @property
    def name(self) -> str | None:
        """The name of the queue."""
        return self._name

    def add(
        self,
        key: Key,
        *,
        after: Seconds | None = None,
        debounce: Seconds | None = None,
        at_most: Seconds | None = None,
        merge: Merge | str = Merge.EARLIEST,
        priority: int = 0,
        flags: int = 0,
        reason: str | None = None,
        cause: str | None = None,
    ) -> Added:
        """Adds a key.

        - `after` delays the run. `merge` combines this time with the due time that the key already has.
        - `debounce` delays the run until no add has followed for this time. `at_most` bounds the wait.
        - `priority` counts with `oldest_every`. `flags` are bits that the run sees.
        - `reason` says why the key is added, and `cause` names the object behind the add.
        """
        if (
            after is None
            and debounce is None
            and merge == "earliest"
            and priority == 0
            and flags == 0
            and reason is None
            and cause is None
        ):
            return Added(self._native.add(key, None))
        arguments: dict[str, Any] = {
            "after": after,
            "debounce": debounce,
            "at_most": at_most,
            "merge": merge,
            "priority": priority,
            "flags": flags,
            "reason": reason,
            "cause": cause,
        }
        return Added(self._native.add(key, arguments))

    def add_all(self, keys: Iterable[Key]) -> int:
        """Adds keys in order, and returns the number of adds that were accepted."""
        return self._native.add_all(list_keys(keys))

    def add_rate_limited(self, key: Key) -> Added:
        """Adds a key after the backoff that follows from its failures, as in client-go. The call counts as a failure."""
        return Added(self._native.add_rate_limited(key))

    async def get(self, *, timeout: Seconds | None = None) -> Item | None:
        """Waits for the next key. Returns `None` if the queue has ended, or the timeout has expired.

        If the task is cancelled, no key is lost.
        """
        item = await self._native.get(timeout)
        return None if item is None else Item(item)

    async def get_many(self, max: int) -> list[Item]:
        """Waits until a key is ready, and returns up to `max` keys. Returns no keys if the queue has ended."""
        return [Item(item) for item in await self._native.get_many(max)]

    def try_get(self) -> Item | None:
        """Returns the next key, if one is ready."""
        item = self._native.try_get()
        return None if item is None else Item(item)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        # A generator would keep the item until the next key comes, even if the caller has dropped the item.
        item = await self.get()
        if item is None:
            raise StopAsyncIteration
        return item

    def done(self, key: Key) -> bool:
        """Completes the delivery of a detached key, as in client-go. Returns false if the key is not in flight."""
        return self._native.done(key)

    def forget(self, key: Key) -> None:
        """Forgets the failures of a key."""
        self._native.forget(key)

    def num_requeues(self, key: Key) -> int:
        """Returns the number of failures that the limiter counts."""
        return self._native.num_requeues(key)

    def failures(self, key: Key) -> int:
        """Returns the number of consecutive failures."""
        return self._native.failures(key)

    def cancel(self, key: Key) -> bool:
        """Removes the pending run of a key. Returns true if the key had one. A run in flight continues."""
        return any(self._native.cancel(key))

    def cancel_running(self, key: Key) -> CancelledRun:
        """Cancels the run of a key in flight."""
        return CancelledRun(self._native.cancel_running(key))

    def __len__(self) -> int:
        return self._native.len()

    def __bool__(self) -> bool:
        # An empty queue must be true, although its length is 0.
        return True

    def waiting(self) -> int:
        """Returns the number of keys with a due time."""
        return self._native.waiting()

    def states(self) -> StateCounts:
        """Returns the number of keys in each state."""
        return to_counts(self._native.states())

    def look_up(self, key: Key) -> Entry | None:
        """Returns the state of a key."""
        fields = self._native.look_up(key)
        return None if fields is None else to_entry(fields)

    def snapshot(self, cursor: int = 0, limit: int = 100) -> tuple[list[Entry], int | None]:
        """Returns a page of keys, and the cursor of the next page."""
        entries, after = self._native.snapshot(cursor, limit)
        return [to_entry(fields) for fields in entries], after

    def reasons(self, key: Key) -> list[Reason]:
        """Returns the reasons for the pending run of a key."""
        return to_reasons(self._native.reasons(key))

    def explain(self, key: Key) -> str:
        """Returns a sentence that says why a key waits."""
        return self._native.explain(key)

    def next_due(self) -> float | None:
        """Returns the time until the next key is due."""
        return self._native.next_due()

    def pause(self) -> None:
        """Stops deliveries. All other operations continue."""
        self._native.pause()

    def resume(self) -> None:
        """Ends a pause."""
        self._native.resume()

    @property
    def is_paused(self) -> bool:
        """True during a pause."""
        return self._native.is_paused()

    def close(self) -> None:
        """Refuses new keys. Known keys run until no key is left."""
        self._native.close()

    @property
    def is_closed(self) -> bool:
        """True after `close` or `shut_down`."""
        return self._native.is_closed()

    def shut_down(self) -> list[str]:
        """Refuses all adds, and returns the waiting keys, which are dropped. Ready keys are still delivered."""
        return self._native.shut_down()

    @property
    def shutting_down(self) -> bool:
        """True after `shut_down`."""
        return self._native.shutting_down()

    async def shut_down_with_drain(self, *, timeout: Seconds | None = None) -> Drained:
        """Shuts down, and waits until no key is ready or in flight."""
        return Drained(**await self._native.shut_down_with_drain(timeout))

    def take_dropped(self) -> list[str]:
        """Returns the keys that were dropped since `shut_down`."""
        return self._native.take_dropped()

    def flush_debounced(self) -> int:
        """Ends the quiet times of debounced keys, and returns the number of these keys."""
        return self._native.flush_debounced()

    def pause_group(self, group: Key) -> None:
        """Stops the deliveries of a group. The queue needs `group_by`."""
        self._native.pause_group(group)

    def resume_group(self, group: Key) -> None:
        """Ends the pause of a group."""
        self._native.resume_group(group)

    def is_group_paused(self, group: Key) -> bool:
        """Returns true if the group is paused."""
        return self._native.is_group_paused(group)

    def cancel_group(self, group: Key) -> int:
        """Removes the pending runs of a group, and returns their number."""
        return self._native.cancel_group(group)

    def cancel_running_group(self, group: Key) -> int:
        """Cancels the runs in flight of a group, and returns their number."""
        return self._native.cancel_running_group(group)

    def group_states(self, group: Key) -> StateCounts:
        """Returns the number of keys of a group in each state."""
        return to_counts(self._native.group_states(group))

    def __repr__(self) -> str:
        return f"<requeue.Queue {self._name!r}>" if self._name else "<requeue.Queue>"


class Item:
    """A key in flight. An item that is dropped before its completion has failed.

    `with item:` completes the item: with a success, or with the failure that an exception stands for.
    """

    __slots__ = (
        "_native",
        "adds",
        "attempt",
        "fencing_token",
        "flags",
        "key",
        "priority",
        "queued",
    )

    key: str
    attempt: int
    """1 plus the number of consecutive failures."""
    adds: int
    """The number of adds that this run serves."""
    flags: int
    """The flags of these adds, combined by bitwise or."""
    priority: int
    """The highest priority of these adds."""
    queued: float | None
    """How long the key was ready, if the queue has `track_times`."""
    fencing_token: int
    """A number that is greater for each later delivery of the key."""

    def __init__(self, native: _native.MemoryItem) -> None:
        self._native = native
        self.key, delivery = native.receive()
        self.attempt, self.adds, self.flags, self.priority, self.queued, self.fencing_token = (
            delivery
        )

    @property
    def reasons(self) -> list[Reason]:
        """The reasons of the adds."""
        return to_reasons(self._native.reasons())

    @property
    def cancel_reason(self) -> CancelReason | None:
        """The reason why the run was cancelled."""
        return to_reason(self._native.cancel_reason())

    async def cancelled(self) -> CancelReason:
        """Waits until the run is cancelled."""
        return CancelReason(await self._native.cancelled())

    def set_priority(self, priority: int) -> None:
        """Sets the priority of the key's next run, if the completion causes a run."""
        self._native.set_priority(priority)

    def succeed(self) -> None:
        """The run succeeded. The key's failures are forgotten."""
        self._native.complete("succeed", None)

    def requeue_after(self, delay: Seconds) -> None:
        """The run succeeded, and the key is added again after `delay`."""
        self._native.complete("requeue_after", delay)

    def retry(self) -> None:
        """The run failed, and is retried after the backoff."""
        self._native.complete("retry", None)

    def retry_after(self, delay: Seconds) -> None:
        """The run failed, and is retried after `delay`."""
        self._native.complete("retry_after", delay)

    def give_up(self) -> None:
        """The run failed, and is not retried."""
        self._native.complete("give_up", None)

    def release(self) -> None:
        """Undoes the delivery. No failure is counted."""
        self._native.complete("release", None)

    def release_after(self, delay: Seconds) -> None:
        """Undoes the delivery. The key waits for `delay`."""
        self._native.complete("release_after", delay)

    def cancel(self) -> None:
        """The run was cancelled, and has stopped before its end."""
        self._native.complete("cancelled", None)

    def done(self) -> None:
        """Completes the delivery as in client-go: the key's failures are unchanged."""
        self._native.done()

    def detach(self) -> str:
        """Separates the delivery from this item, and returns the key. `Queue.done` then completes the delivery."""
        return self._native.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
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
            self.succeed()
        else:
            completion, delay, _ = choose_completion(error, is_cancelled)
            self._native.complete(completion, delay)

    def __repr__(self) -> str:
        return f"<requeue.Item {self.key!r}, attempt {self.attempt}>"
