"""Converts the values of the native module."""

import logging
from collections.abc import Iterable
from typing import Any

from . import _native
from ._types import CancelReason, Entry, Key, Reason, State, StateCounts


def sync_log_level() -> None:
    """Lets events reach `logging` from the level of the logger `requeue` on."""
    _native.set_log_level(min(logging.getLogger("requeue").getEffectiveLevel(), 255))


def list_keys(keys: Iterable[Key]) -> list[Key]:
    if isinstance(keys, (str, bytes)):
        raise TypeError("give an iterable of keys, not one key")
    return list(keys)


def to_reason(reason: str | None) -> CancelReason | None:
    return None if reason is None else CancelReason(reason)


def to_reasons(reasons: list[tuple[str, int, str | None, str | None]]) -> list[Reason]:
    return [Reason(*fields) for fields in reasons]


def to_entry(fields: dict[str, Any]) -> Entry:
    fields["state"] = State(fields["state"])
    fields["cancelled"] = to_reason(fields["cancelled"])
    return Entry(**fields)


def to_counts(fields: dict[str, Any]) -> StateCounts:
    return StateCounts(**fields)
