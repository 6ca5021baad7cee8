"""Where the calls of environments are executed: at once, in threads, or in the line of a worker process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lit_treerl.envs.base import Environment


class EnvironmentCalls:
    """Calls of one environment's instances, for a ``with`` block.

    An instance with an executor of its own is called there, so that it takes no thread from others while it waits for
    its turn; others in threads, or at once where the environment runs in the caller. A block that ends well waits for
    all calls; one that an error ends drops those that have not begun and waits for none, so that the error is seen.

    Args:
        env: whose instances are called.
        threads: most calls at a time, of instances without an executor of their own.
    """

    def __init__(self, env: Environment, threads: int) -> None:
        self._pool = None if env.runs_in == "caller" else ThreadPoolExecutor(threads, thread_name_prefix="environment")
        self._open: set[Future[Any]] = set()

    def __enter__(self) -> EnvironmentCalls:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for future in list(self._open):
                future.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None)

    def submit(self, env: Environment, call: Callable[[], Any]) -> Future[Any]:
        """Have ``call``, which is a call of ``env``, executed; it is done when this returns where nothing waits."""
        if self._pool is None:
            return _done(call)
        future = (env.executor or self._pool).submit(call)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future


def _done(call: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)
    return future
