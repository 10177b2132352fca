"""Workers: a handler runs for each key, several at a time."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeAlias, cast

from . import _native
from ._convert import sync_log_level, to_reason, to_reasons
from ._errors import RetryAfter, TerminalError
from ._memory import Queue
from ._outcome import choose_completion
from ._store import StoreQueue
from ._types import Action, CancelReason, Drained, Reason, Seconds

_logger = logging.getLogger("requeue.workers")

Result: TypeAlias = Action | None
Function: TypeAlias = (
    Callable[[str], Awaitable[Result]]
    | Callable[[str, "Context"], Awaitable[Result]]
    | Callable[[str], Result]
    | Callable[[str, "Context"], Result]
)


class Context:
    """The run for which a handler is called. A handler with a second parameter receives it."""

    __slots__ = ("_delivery", "_run")

    def __init__(self, run: _native.Run) -> None:
        self._run = run
        self._delivery = run.delivery()

    @property
    def key(self) -> str:
        """The key."""
        return self._run.key

    @property
    def attempt(self) -> int:
        """1 plus the number of consecutive failures."""
        return self._delivery[0]

    @property
    def is_last_attempt(self) -> bool:
        """True if the key is given up when this attempt fails."""
        return self._run.is_last_attempt()

    @property
    def adds(self) -> int:
        """The number of adds that this run serves."""
        return self._delivery[1]

    @property
    def flags(self) -> int:
        """The flags of these adds, combined by bitwise or."""
        return self._delivery[2]

    @property
    def priority(self) -> int:
        """The highest priority of these adds."""
        return self._delivery[3]

    @property
    def queued(self) -> float | None:
        """How long the key was ready, if the queue keeps times."""
        return self._delivery[4]

    @property
    def fencing_token(self) -> int:
        """A number that is greater for each later delivery of the key."""
        return self._delivery[5]

    @property
    def reasons(self) -> list[Reason]:
        """The reasons of the adds. Queues in a store keep none."""
        return to_reasons(self._run.reasons())

    @property
    def cancel_reason(self) -> CancelReason | None:
        """The reason why the run is cancelled. A blocking handler should then return."""
        return to_reason(self._run.cancel_reason())


class Workers:
    """Runs a handler for each key of a queue, `concurrency` at a time.

    The handler is an async function, or a blocking function, which runs on a thread. It receives the key, and a
    `Context` if it has a second parameter.

    - It returns `None` for a success, or an `Action`.
    - An exception is a failure, which is retried after the backoff. `RetryAfter` and `TerminalError` choose another
      effect.
    - A run is cancelled if its time limit has passed, its lease is lost, or `cancel_running` asks for it. The task of
      an async handler then gets `asyncio.CancelledError`. If the handler raises this exception itself, the key is
      ready again, and no failure is counted.

    - `max_retries` gives a key up that fails more often. `on_give_up` is called with its key and error.
    - `timeout` limits an attempt, and `grace` the time in which a cancelled attempt must stop.
    - `drain_timeout` limits the wait of `run` after `shut_down`.
    """

    def __init__(
        self,
        queue: Queue | StoreQueue,
        handler: Function,
        *,
        concurrency: int = 1,
        max_retries: int | None = None,
        timeout: Seconds | None = None,
        grace: Seconds | None = None,
        drain_timeout: Seconds | None = None,
        on_give_up: Callable[[str, str], object] | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: expected at least 1")
        self._queue = queue
        self._handler: Callable[..., Any] = handler
        self._is_async = _is_async(handler)
        self._takes_context = _takes_context(handler)
        self._concurrency = concurrency
        self._on_give_up = on_give_up
        self._settings: dict[str, Any] = {
            "concurrency": concurrency,
            "max_retries": max_retries,
            "timeout": timeout,
            "grace": grace,
            "drain_timeout": drain_timeout,
            "reports_given_up": on_give_up is not None,
        }
        self._runs: _native.Runs | None = None
        self._is_shut_down = False
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> Drained:
        """Runs until the queue is closed or shut down, and delivers no more keys.

        If the task is cancelled, for example by Ctrl-C, the runs in flight are cancelled, their keys are released, and
        the queue stays open.
        """
        if self._runs is not None:
            raise RuntimeError("these workers run already, or have run")
        sync_log_level()
        runs = self._runs = _native.Runs(self._queue._native, self._settings)
        if self._is_shut_down:
            runs.shut_down()
        executor = None if self._is_async else ThreadPoolExecutor(self._concurrency, "requeue")
        # The future is shielded, so that no event is lost if the task is cancelled.
        pending = runs.next()
        try:
            while True:
                for event in await asyncio.shield(pending):
                    if isinstance(event, dict):
                        return Drained(**event)
                    self._handle(event, executor)
                pending = runs.next()
        except BaseException:
            runs.stop()
            await self._stop(runs, pending)
            raise
        finally:
            if executor is not None:
                executor.shutdown(wait=False)

    def shut_down(self) -> None:
        """Shuts the queue down in this process. `run` returns when the runs in flight are complete.

        `loop.add_signal_handler(signal.SIGTERM, workers.shut_down)` calls this method for a signal.
        """
        self._is_shut_down = True
        if self._runs is not None:
            self._runs.shut_down()

    def _handle(
        self, event: _native.Run | int | tuple[str, str], executor: Executor | None
    ) -> None:
        if isinstance(event, _native.Run):
            attempt = self._attempt(event, executor)
            self._tasks[event.number] = asyncio.get_running_loop().create_task(attempt)
        elif isinstance(event, int):
            task = self._tasks.pop(event, None)
            if task is not None:
                task.cancel()
        elif self._on_give_up is not None:
            try:
                self._on_give_up(*event)
            except Exception:
                _logger.exception("%s: on_give_up failed", event[0])

    async def _attempt(self, run: _native.Run, executor: Executor | None) -> None:
        try:
            if executor is None:
                if self._takes_context:
                    result = await self._handler(run.key, Context(run))
                else:
                    result = await self._handler(run.key)
            else:
                result = await self._call_on_thread(run, executor)
        except BaseException as error:
            self._fail(run, error)
            if not isinstance(error, (Exception, asyncio.CancelledError)):
                raise
        else:
            if result is None:
                run.succeed()
            else:
                self._finish(run, result)
        finally:
            self._tasks.pop(run.number, None)

    async def _call_on_thread(self, run: _native.Run, executor: Executor) -> Any:
        arguments = (run.key, Context(run)) if self._takes_context else (run.key,)
        call = functools.partial(contextvars.copy_context().run, self._handler, *arguments)
        future = asyncio.get_running_loop().run_in_executor(executor, call)
        try:
            result = await asyncio.shield(future)
        except asyncio.CancelledError:
            # A thread cannot be stopped. Its result counts while the worker waits for the thread.
            result = await future
        return await result if inspect.isawaitable(result) else result

    def _finish(self, run: _native.Run, result: object) -> None:
        if isinstance(result, Action):
            run.finish(result.completion, result.delay, None, result.priority)
        else:
            kind = type(result).__qualname__
            self._fail(run, TypeError(f"a handler returns None or a requeue.Action, not {kind}"))

    def _fail(self, run: _native.Run, error: BaseException) -> None:
        completion, delay, text = choose_completion(error, run.cancel_reason() is not None)
        if text is not None:
            trace = None if isinstance(error, (RetryAfter, TerminalError)) else error
            attempt = run.delivery()[0]
            _logger.warning("%s: attempt %d failed: %s", run.key, attempt, text, exc_info=trace)
        try:
            run.finish(completion, delay, text)
        except (TypeError, ValueError) as invalid:
            # The delay of `RetryAfter` is invalid.
            run.finish("retry", None, f"{text} ({invalid})")

    async def _stop(
        self,
        runs: _native.Runs,
        pending: asyncio.Future[list[_native.Run | int | tuple[str, str] | dict[str, Any]]],
    ) -> None:
        """Cancels the runs in flight, and waits until the workers have stopped."""
        for task in self._tasks.values():
            task.cancel()
        # An empty list means that the workers have stopped.
        while events := await asyncio.shield(pending):
            for event in events:
                if isinstance(event, dict):
                    return
                if isinstance(event, _native.Run):
                    event.finish("release")
            pending = runs.next()


class Handler:
    """A function with the options of its workers: the result of the decorator `handler`."""

    __name__: str

    def __init__(self, function: Function, options: dict[str, Any]) -> None:
        functools.update_wrapper(cast(Any, self), cast(Any, function))
        self.function = function
        self._options = options

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls the function."""
        return cast(Any, self.function)(*arguments, **named)

    def workers(self, queue: Queue | StoreQueue) -> Workers:
        """Returns workers that call the function for the keys of a queue."""
        return Workers(queue, self.function, **self._options)

    async def run(self, queue: Queue | StoreQueue) -> Drained:
        """Runs these workers: see `Workers.run`."""
        return await self.workers(queue).run()


def handler(
    *,
    concurrency: int = 1,
    max_retries: int | None = None,
    timeout: Seconds | None = None,
    grace: Seconds | None = None,
    drain_timeout: Seconds | None = None,
    on_give_up: Callable[[str, str], object] | None = None,
) -> Callable[[Function], Handler]:
    """Makes a function a handler. `Workers` describes the options.

    ```python
    @requeue.handler(concurrency=8)
    async def send(key: str) -> None: ...

    await send.run(queue)
    ```
    """
    options = {
        "concurrency": concurrency,
        "max_retries": max_retries,
        "timeout": timeout,
        "grace": grace,
        "drain_timeout": drain_timeout,
        "on_give_up": on_give_up,
    }
    return lambda function: Handler(function, options)


def _is_async(function: Any) -> bool:
    call = getattr(function, "__call__", None)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _takes_context(function: Any) -> bool:
    """Returns true if the function has two positional parameters."""
    try:
        signature = inspect.signature(function)
        signature.bind(None, None)
    except (TypeError, ValueError):
        return False
    return True
