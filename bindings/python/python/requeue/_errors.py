"""Exceptions of stores, and exceptions that handlers raise."""

from ._types import CompleteErrorKind, ErrorKind, Seconds

__all__ = [
    "AddError",
    "CompleteError",
    "ConnectError",
    "Error",
    "MigrateError",
    "OpenError",
    "ReadError",
    "RetryAfter",
    "StoreError",
    "TerminalError",
    "UpdateError",
]


class Error(Exception):
    """The base of all exceptions of this package. Bad input raises `ValueError` instead."""


class StoreError(Error):
    """An operation on a store failed.

    `kind` names the cause. If `may_have_happened` is true, the change may have taken effect, because the answer of the
    store was lost.
    """

    kind: ErrorKind | CompleteErrorKind
    may_have_happened: bool

    def __init__(self, message: str, kind: str, may_have_happened: bool = False) -> None:
        super().__init__(message, kind, may_have_happened)
        self.kind = ErrorKind(kind)
        self.may_have_happened = may_have_happened

    def __str__(self) -> str:
        return str(self.args[0])


class ConnectError(StoreError):
    """`Store.connect` failed. The message contains no password."""


class MigrateError(StoreError):
    """`Store.migrate` failed. Repeating the call is harmless."""


class OpenError(StoreError):
    """`Store.queue` failed."""


class ReadError(StoreError):
    """A query failed."""


class UpdateError(StoreError):
    """A cancel, revive, pause or drop failed."""


class AddError(StoreError):
    """An add failed. Adding the key again is harmless."""


class CompleteError(StoreError):
    """A completion failed. In most cases, the run counts as failed, and the key is delivered again."""

    kind: CompleteErrorKind

    def __init__(self, message: str, kind: str, may_have_happened: bool = False) -> None:
        Exception.__init__(self, message, kind, may_have_happened)
        self.kind = CompleteErrorKind(kind)
        self.may_have_happened = may_have_happened


class TerminalError(Error):
    """A handler raises this exception if another attempt is useless.

    A queue in memory forgets the key's failures. A store parks the key.
    """


class RetryAfter(Error):
    """A handler raises this exception to be called again after `delay` seconds.

    The failure counts as an attempt, but the key's backoff does not grow.
    """

    delay: Seconds

    def __init__(self, delay: Seconds, message: str = "the handler asked for a retry") -> None:
        super().__init__(delay, message)
        self.delay = delay

    def __str__(self) -> str:
        return str(self.args[1])
