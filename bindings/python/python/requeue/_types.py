"""Plain data. Durations are numbers of seconds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TypeAlias

__all__ = [
    "Action",
    "Added",
    "Attempt",
    "CancelReason",
    "CancelledRun",
    "CompleteErrorKind",
    "Drained",
    "Entry",
    "ErrorKind",
    "GroupInfo",
    "Key",
    "Merge",
    "ParkedAdd",
    "QueueInfo",
    "ReaddPolicy",
    "Reason",
    "ScheduleInfo",
    "Seconds",
    "State",
    "StateCounts",
]

Key: TypeAlias = str | bytes
"""A key. The queue returns keys as `str`. Bytes that are not UTF-8 become surrogates, as in `os.fsdecode`."""

Seconds: TypeAlias = float | timedelta
"""A duration: a number of seconds of at least 0, or a `timedelta`. `math.inf` means never."""


class Added(StrEnum):
    """The answer to an add."""

    NEW = "new"
    """The key has become ready, or has begun to wait."""
    COALESCED = "coalesced"
    """The add is part of a run that was already pending."""
    DIRTY = "dirty"
    """The key is in flight, and runs once more after its completion."""
    BACKING_OFF = "backing_off"
    """The key is backing off, and runs when the backoff is over."""
    REFUSED = "refused"
    """The queue has been closed or shut down."""
    REVIVED = "revived"
    """The key was parked, and is ready again."""
    PARKED = "parked"
    """The key is parked, and the add has not changed this."""


class ReaddPolicy(StrEnum):
    """The effect of an add on a key that waits or backs off."""

    HOLD = "hold"
    REPLACE = "replace"
    KEEP_BOTH = "keep_both"
    """client-go's behaviour, only in memory."""


class ParkedAdd(StrEnum):
    """The effect of an add on a parked key."""

    REVIVE = "revive"
    KEEP = "keep"


class Merge(StrEnum):
    """The rule that combines the due time of an add with the due time that the key already has."""

    EARLIEST = "earliest"
    LATEST = "latest"
    EXACTLY = "exactly"


class State(StrEnum):
    """The state of a key."""

    READY = "ready"
    WAITING = "waiting"
    IN_FLIGHT = "in_flight"
    PARKED = "parked"
    """Failed for the last time. Only in a store."""
    DAMAGED = "damaged"
    """The row of the key cannot be read. Only in a store."""
    IDLE = "idle"
    """The queue remembers only the failures of the key. Only in memory."""


class CancelReason(StrEnum):
    """The reason why a run is cancelled."""

    CANCELLED = "cancelled"
    RESTARTED = "restarted"
    TIMED_OUT = "timed_out"
    STOPPING = "stopping"
    LOST = "lost"
    """The lease is lost, so the key no longer belongs to this worker."""


class CancelledRun(StrEnum):
    """The result of `cancel_running`."""

    NOT_IN_FLIGHT = "not_in_flight"
    CANCELLED = "cancelled"
    ALREADY_CANCELLED = "already_cancelled"


class ErrorKind(StrEnum):
    """The cause of a `StoreError`."""

    MISSING = "missing"
    """The store has no queue of that name."""
    HAS_KEYS = "has_keys"
    """The queue has keys or schedules, and was not dropped."""
    DROPPED = "dropped"
    """The queue was dropped after it was opened."""
    UNREACHABLE = "unreachable"
    """The store cannot be reached now. The same call may succeed later."""
    AUTHENTICATION = "authentication"
    TLS = "tls"
    WRONG_SERVER = "wrong_server"
    REFUSED = "refused"


class CompleteErrorKind(StrEnum):
    """The cause of a `CompleteError`."""

    LOST = "lost"
    """The lease had expired, so the completion changed nothing."""
    UNSURE = "unsure"
    """The answer was lost: either the completion took effect, or the lease expired before."""
    DROPPED = "dropped"
    """The queue was dropped together with the key."""
    UNREACHABLE = "unreachable"
    """The store could not be reached before the lease expired."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a key was added: a text, the number of adds, and the first and last cause."""

    text: str
    adds: int
    first: str | None
    last: str | None


@dataclass(frozen=True, slots=True)
class StateCounts:
    """The number of keys in each state. `in_flight` includes the dirty keys."""

    ready: int = 0
    waiting: int = 0
    in_flight: int = 0
    dirty: int = 0
    backing_off: int = 0
    """Only in memory. In a store, such keys are waiting."""
    parked: int = 0
    damaged: int = 0
    oldest_ready: float = 0.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A key and its state. Times are relative to now."""

    key: str
    state: State
    dirty: bool
    since: float | None
    """How long the key has been in this state, if the queue keeps times."""
    due: float | None
    """The time until the key may be delivered, if the key waits."""
    bound: float | None
    """The time until the bound of debounced adds."""
    failures: int
    priority: int
    flags: int
    adds: int
    cancelled: CancelReason | None
    throttled: bool = False
    """Ready, but the group is paused or at its limit. Only in memory."""
    error: str | None = None
    failed: float | None = None
    group: str | None = None
    worker: str | None = None
    fencing_token: int | None = None
    lease: float | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed run of a key in a store."""

    number: int
    ended: float
    """How long ago the run ended."""
    took: float
    worker: str | None
    exit_status: int | None
    error: str
    output: str | None


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue in a store."""

    name: str
    is_empty: bool
    is_paused: bool
    group_limit: int | None
    rate: str | None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group of keys in a store."""

    name: str
    counts: StateCounts
    limit: int | None
    weight: int
    rate: str | None
    next_start: float | None
    is_paused: bool


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """The schedule of a key in a store."""

    key: str
    spec: str
    zone: str | None
    next: float | None
    """The time until the next add."""
    is_paused: bool
    error: str | None
    priority: int
    group: str | None


@dataclass(frozen=True, slots=True)
class Drained:
    """A report about a queue after its shutdown."""

    finished: bool
    """True if no key was ready or in flight."""
    ready: int
    in_flight: int
    dropped: list[str]
    """The keys whose pending run was dropped."""


@dataclass(frozen=True, slots=True)
class Action:
    """The result of a handler whose run did not fail. A handler that returns `None` has succeeded."""

    completion: str
    delay: Seconds | None = None
    priority: int | None = None
    """The priority of the key's next run."""

    @classmethod
    def succeed(cls) -> Action:
        """The run succeeded, and the key runs again when it is added."""
        return cls("succeed")

    @classmethod
    def requeue_after(cls, delay: Seconds, *, priority: int | None = None) -> Action:
        """The run succeeded, and the key is added again after `delay`."""
        return cls("requeue_after", delay, priority)

    @classmethod
    def release(cls, *, priority: int | None = None) -> Action:
        """The delivery is undone, and the key is ready again. No failure is counted."""
        return cls("release", None, priority)

    @classmethod
    def release_after(cls, delay: Seconds, *, priority: int | None = None) -> Action:
        """The delivery is undone, and the key waits for `delay`. A store releases the key immediately."""
        return cls("release_after", delay, priority)

    @classmethod
    def cancelled(cls) -> Action:
        """The run has stopped because it was cancelled. It counts neither as a success nor as a failure."""
        return cls("cancelled")
