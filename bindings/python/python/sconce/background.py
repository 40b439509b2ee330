"""Threads that wait for the engine while asyncio runs other tasks."""

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor

_executor = None


async def in_background(function, *arguments, **options):
    """The result of a call that blocks. asyncio's own threads stay free for the program."""
    global _executor
    if _executor is None:
        # A thread is started only when all others are busy.
        _executor = ThreadPoolExecutor(max_workers=64, thread_name_prefix="sconce asyncio")
    call = functools.partial(function, *arguments, **options)
    return await asyncio.get_running_loop().run_in_executor(_executor, call)


def after_fork():
    """Forgets the threads, which a forked process does not have."""
    global _executor
    _executor = None
