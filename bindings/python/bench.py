"""Measures a handler that does nothing: bench.py [--keys N] [--concurrency N] [URL...]

Each URL is a store. Without a URL, the queue is in memory. The program prints the keys per second, and the processor
time of this process per key, which depends less on other processes.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable

import requeue


async def handle(key: str) -> None:
    pass


async def measure(name: str, keys: int, work: Awaitable[object]) -> None:
    started = time.perf_counter()
    busy = time.process_time()
    await work
    rate = keys / (time.perf_counter() - started)
    cost = (time.process_time() - busy) / keys * 1e6
    print(f"{name}: {rate:,.0f} keys/s, {cost:.0f} µs of processor time per key", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--concurrency", type=int, default=512)
    parser.add_argument("urls", nargs="*")
    options = parser.parse_args()
    count, concurrency = options.keys, options.concurrency
    keys = [f"key-{number}" for number in range(count)]

    if not options.urls:
        queue = requeue.Queue()
        queue.add_all(keys)
        queue.close()
        workers = requeue.Workers(queue, handle, concurrency=concurrency)
        await measure("memory", count, workers.run())
    for url in options.urls:
        engine = url.split(":")[0]
        async with requeue.Store.connect(url) as store:
            await store.migrate()
            stored = await store.queue(f"bench-{time.time_ns()}")
            await measure(f"{engine}, adds", count, stored.add_all(keys))
            stored.shut_down_when_idle()
            stored_workers = requeue.Workers(stored, handle, concurrency=concurrency)
            await measure(f"{engine}, runs", count, stored_workers.run())


asyncio.run(main())
