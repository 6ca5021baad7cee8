"""Environments in worker processes: engines that are not thread-safe, or that may take their process down with them."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any

from lit_treerl.envs.base import Environment, EnvironmentFailure, StepResult
from lit_treerl.trees.task import Message, Task

PATIENCE_S = 5.0  # for an environment to close, and for calls under way before that


class ProcessDied(Exception):
    """A worker process ended, or was ended because it did not answer in time."""


class ProcessEnvironments(Environment):
    """Stands in for an environment whose instances live in worker processes.

    Every instance stays in one process and calls wait for the answer there, so they belong into threads: each process
    has one, the executor of its instances, and a process that hangs holds up those alone. Where a process dies, a new
    one replays the actions of each instance that had lived in it; where it dies again at the same call, that is an
    :class:`EnvironmentFailure` of the branch. Environment and snapshots must be picklable.

    Args:
        env: the environment; set up in each process.
        processes: how many.
        timeout_s: a process that takes longer for one call is killed.
        recycle_after: a process is replaced once so many episodes have begun in it, for engines that leak; never where
            None. Episodes under way go on in the next process, by replay.
    """

    runs_in = "threads"

    def __init__(self, env: Environment, processes: int, timeout_s: float, recycle_after: int | None = None) -> None:
        self.context, self.stop, self.max_turns = env.context, env.stop, env.max_turns
        self._workers = [Worker(pickle.dumps(env), timeout_s, recycle_after) for _ in range(processes)]
        self._numbers = itertools.count()

    def setup(self) -> None:
        """Start the processes, and set the environment up in each."""
        try:
            for worker in self._workers:
                worker.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes; those that still work on a call after 5 s are killed."""
        until = time.monotonic() + PATIENCE_S
        for worker in self._workers:
            worker.retire()
        for worker in self._workers:
            worker.end(until - time.monotonic())

    def spawn(self) -> Environment:
        """An instance in one of the processes, which take turns."""
        number = next(self._numbers)
        twin = _Instance(number, self._workers[number % len(self._workers)])
        twin.context, twin.stop, twin.max_turns = self.context, self.stop, self.max_turns
        return twin

    def _reset(self, task: Task) -> list[Message]:
        raise NotImplementedError("spawn an instance first")

    def _step(self, text: str) -> StepResult:
        raise NotImplementedError("spawn an instance first")


class _Instance(Environment):
    """One environment in a worker process."""

    def __init__(self, key: int, worker: Worker) -> None:
        self._key, self._worker, self._life = key, worker, -1
        self.executor = worker.executor
        self._history = []
        weakref.finalize(self, worker.forgotten.append, key)

    def _reset(self, task: Task) -> list[Message]:
        return self._call("reset", task)

    def _step(self, text: str) -> StepResult:
        return self._call("step", text)

    def truncate(self) -> StepResult:
        """What the environment's own says."""
        return self._call("truncate")

    def snapshot(self) -> Any:
        """The environment's own snapshot, with the actions that another process would have to replay."""
        return self._call("snapshot"), self._task, tuple(self._history)

    def restore(self, snapshot: Any) -> None:
        """Go on from a snapshot, which may come from an instance in another process."""
        inner, self._task, history = snapshot
        self._history = list(history)
        self._call("restore", inner)

    def _call(self, name: str, *args: Any) -> Any:
        death: ProcessDied | None = None
        needed = None if name in ("reset", "restore") else (self._life, (self._task, tuple(self._history)))
        for _ in range(2):
            try:
                self._life, answer = self._worker.call(self._key, name, args, needed)
                return answer
            except ProcessDied as error:
                death = error
        raise EnvironmentFailure(f"{death}, twice at {name} of task {self._task.id if self._task else None!r}")


class Worker:
    """A process that serves one call at a time.

    Args:
        env: the pickled environment.
        timeout_s: most seconds for one call. A new process has as long for its setup, and twice what the first took,
            which has no limit.
        recycle_after: episodes after which the process is replaced.

    Attributes:
        executor: one thread, for calls to wait in line.
        forgotten: keys of instances that nobody will call again.
    """

    def __init__(self, env: bytes, timeout_s: float, recycle_after: int | None = None) -> None:
        self._env, self._timeout, self._recycle_after = env, timeout_s, recycle_after
        self._episodes = 0  # begun in this process
        self._setup_s: float | None = None  # what the setup in the first process took
        self._retired = False
        self._lock = threading.Lock()
        self._process: Any = None
        self._pipe: Connection | None = None
        self._life = 0  # number of the process
        self.forgotten: deque[int] = deque()
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="environment process")

    def start(self) -> None:
        """Start the process where there is none; what its ``setup`` raises is raised here."""
        with self._lock:
            if self._retired:
                self._retired = False
                self.executor = ThreadPoolExecutor(1, thread_name_prefix="environment process")
            if self._pipe is None:
                self._setup_s = None  # as long as it takes
            self._started()

    def retire(self) -> None:
        """Begin no further call."""
        self._retired = True
        self.executor.shutdown(wait=False, cancel_futures=True)

    def end(self, patience_s: float = PATIENCE_S) -> None:
        """Have the environment closed and end the process, after a call under way, which has ``patience_s`` seconds."""
        self.retire()
        while not self._lock.acquire(timeout=max(0.1, patience_s)):
            with suppress(AttributeError):  # it has just ended
                self._process.kill()  # the call hears of it
        try:
            self._end()
        finally:
            self._lock.release()

    def _end(self) -> None:
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.send(None)
            self._process.join(PATIENCE_S)
        self._kill()

    def call(self, key: int, name: str, args: Sequence[Any], needed: tuple[int, Any] | None) -> tuple[int, Any]:
        """The process's number and its answer.

        Args:
            key: of the instance.
            name: of the method.
            args: of the method.
            needed: the process that the instance lived in, and what to replay where it is gone; None where the method
                itself puts the instance into a state.

        Raises:
            ProcessDied: where it did not answer.
        """
        with self._lock:
            if name == "reset":
                if self._recycle_after is not None and self._episodes >= self._recycle_after:
                    self._end()
                self._episodes += 1
            pipe = self._started()
            forgotten = [self.forgotten.popleft() for _ in range(len(self.forgotten))]
            if needed is not None and needed[0] != self._life:
                self._ask(pipe, (key, "replay", needed[1], []), self._timeout * (1 + len(needed[1][1])))
            return self._life, self._ask(pipe, (key, name, tuple(args), forgotten), self._timeout)

    def _started(self) -> Connection:
        if self._retired:
            raise RuntimeError("the environment's processes are closed; call setup() first")
        if self._pipe is None:
            began = time.monotonic()
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs, self._env), daemon=True)
            self._process.start()
            theirs.close()
            self._life += 1
            self._episodes = min(self._episodes, 1)  # that which begins now
            limit = None if self._setup_s is None else self._timeout + 2 * self._setup_s
            try:
                self._hear(self._pipe, limit)  # it speaks first, once it is set up
            except BaseException:
                self._kill()
                raise
            if self._setup_s is None:
                self._setup_s = time.monotonic() - began
        return self._pipe

    def _ask(self, pipe: Connection, message: Any, timeout: float) -> Any:
        with suppress(OSError):  # it is dead, which is heard below
            pipe.send(message)
        return self._hear(pipe, timeout)

    def _hear(self, pipe: Connection, timeout: float | None) -> Any:
        try:
            if not pipe.poll(timeout):
                self._kill()
                raise ProcessDied(f"the environment's process did not answer within {timeout:g} s and was ended")
            fine, answer = pipe.recv()
        except (EOFError, OSError):  # OSError: it died within a message
            self._kill()
            raise ProcessDied("the environment's process died") from None
        if not fine:
            raise answer
        return answer

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


def serve(pipe: Connection, pickled: bytes) -> None:
    """What a worker process does: set up, then answer until nobody asks any more."""
    instances: dict[int, Environment] = {}
    try:
        env: Environment = pickle.loads(pickled)
        env.setup()
        pipe.send((True, None))
    except Exception as error:
        _send_error(pipe, error)
        return
    with suppress(EOFError, KeyboardInterrupt), closing(env):
        while (message := pipe.recv()) is not None:
            key, name, args, forgotten = message
            for old in forgotten:
                instances.pop(old, None)
            _answer(pipe, env, instances, key, name, args)


def _answer(
    pipe: Connection, env: Environment, instances: dict[int, Environment], key: int, name: str, args: tuple[Any, ...]
) -> None:
    try:
        mine = instances[key] if key in instances else instances.setdefault(key, env.spawn())
        if name == "replay":
            pipe.send((True, Environment.restore(mine, args)))
        else:
            pipe.send((True, getattr(mine, name)(*args)))
    except Exception as error:
        _send_error(pipe, error)


def _send_error(pipe: Connection, error: Exception) -> None:
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # its class takes other arguments than it keeps
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"in the environment's process:\n{trace}")
    pipe.send((False, error))
