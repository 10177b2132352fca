"""The completion of a run whose handler has raised an exception."""

import asyncio

from ._errors import RetryAfter, TerminalError
from ._types import Seconds


def describe_error(error: BaseException) -> str:
    """Returns the text of an error, as the store keeps it."""
    name = type(error).__qualname__
    try:
        text = str(error)
    except Exception:
        text = ""
    if isinstance(error, (RetryAfter, TerminalError)):
        return text or name
    return f"{name}: {text}" if text else name


def choose_completion(
    error: BaseException, is_cancelled: bool
) -> tuple[str, Seconds | None, str | None]:
    """Returns the name of the completion, its delay, and the text of the error if the run has failed."""
    if isinstance(error, RetryAfter):
        return "retry_after", error.delay, describe_error(error)
    if isinstance(error, TerminalError):
        return "give_up", None, describe_error(error)
    if isinstance(error, Exception):
        return "retry", None, describe_error(error)
    # A task that was cancelled, or that Ctrl-C interrupted, has not failed.
    if isinstance(error, asyncio.CancelledError) and is_cancelled:
        return "cancelled", None, None
    return "release", None, None
