"""A deterministic event loop: virtual time, no sockets, no threads, tasks permuted by a seed.

Time stands still while anything is ready, apart from small drawn delays, and jumps to the next
timer when nothing is. In one iteration the steps of tasks run in a drawn order and at drawn places
between the other callbacks; those keep their order among themselves, which asyncio promises and the
product may rely on. Timers that are due at the same instant fire in a drawn order, which asyncio
leaves open.

The loop can be stopped between any two callbacks, for ever: see `run` and `abandon`.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from typing import TYPE_CHECKING, Any

from crushlite.clock import SystemClock

if TYPE_CHECKING:
    import random
    from collections import deque
    from collections.abc import Callable, Coroutine, Iterator

START = 1_000.0  # virtual seconds at the beginning of a loop
WALL = 1_789_000_000.0  # wall-clock seconds at START
MOST_STEPS = (
    400_000  # callbacks: far above what a scenario needs, so that only a livelock gets there
)


class Stuck(AssertionError):
    """Nothing is ready and no timer is armed although the main task is not done, or the loop goes
    on and on."""


class _NumberedTask(asyncio.Task[Any]):
    """Hashed by a number: a set of tasks is then iterated in the same order in every process."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _NumberedFuture(asyncio.Future[Any]):
    """Hashed by a number, as tasks are."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SeededLoop(asyncio.BaseEventLoop):
    """`permute` is the share of iterations whose tasks are permuted, `jitter` the share in which
    some time passes, `lag` the most seconds a call from another thread takes to arrive. `unhandled`
    is called with what asyncio reports to the exception handler of a loop."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(
        self,
        rng: random.Random,
        *,
        permute: float = 1.0,
        jitter: float = 0.1,
        lag: float = 0.0,
        unhandled: Callable[[dict[str, Any]], None] = lambda context: None,
    ) -> None:
        super().__init__()
        self.steps = 0  # callbacks that were run
        self.dead = False  # abandoned: nothing is scheduled any more
        self._halted = False
        self._crash_at: int | None = None  # the number of callbacks after which the loop stops
        self._rng = rng
        self._permute = permute
        self._jitter = jitter
        self._lag = lag
        self._now = START
        self._arrival = START  # when the last call from a thread arrives: they keep their order
        self._numbers = itertools.count(1)
        self._stillborn: list[asyncio.Task[Any]] = []  # made while the loop was being abandoned
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self.set_exception_handler(lambda _, context: None if self.dead else unhandled(context))

    # Running -------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, None], crash_at: int | None = None) -> bool:
        """Run `main` to its end and return True. False: the loop stopped before that, because
        `crash_at` callbacks were run or `halt` was called. Raises what `main` raises, and Stuck."""
        self._crash_at = crash_at
        task = self.create_task(main)
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        if not task.done():
            return False
        task.result()
        return True

    def halt(self) -> None:
        """Run no further callback."""
        self._halted = True

    def _run_once(self) -> None:
        timers = self._scheduled
        while timers and timers[0].cancelled():
            heapq.heappop(timers)
        if not self._ready:
            if not timers:
                raise Stuck(f"nothing is ready and no timer is armed:\n{self.describe_tasks()}")
            self._now = max(self._now, timers[0].when())
        elif self._rng.random() < self._jitter:
            self._now += self._rng.random() * 0.002
        if timers and timers[0].when() <= self._now:
            self._collect_due()
        batch = list(self._ready)
        self._ready.clear()
        order = self._permuted(batch)
        for handle in order:
            if self.steps == self._crash_at or self._halted:
                self._ready.extend((handle, *order))  # kept: their tasks must not be freed yet
                self._stopping = True
                return
            if self.steps > MOST_STEPS:
                raise Stuck(f"no end after {self.steps} callbacks:\n{self.describe_tasks()}")
            self.steps += 1
            if not handle.cancelled():
                handle._run()

    def _collect_due(self) -> None:
        due: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        while self._scheduled and self._scheduled[0].when() <= self._now:
            handle = heapq.heappop(self._scheduled)
            if not handle.cancelled():
                due.append((handle.when(), self._rng.random(), len(due), handle))
        self._ready.extend(handle for _, _, _, handle in sorted(due))

    def _permuted(self, batch: list[asyncio.Handle]) -> Iterator[asyncio.Handle]:
        """The handles with those of tasks in a drawn order, at drawn places."""
        if len(batch) < 2 or self._rng.random() >= self._permute:
            return iter(batch)
        tasks: list[asyncio.Handle] = []
        others: list[asyncio.Handle] = []
        for handle in batch:
            (tasks if _is_step(handle) else others).append(handle)
        if not tasks:
            return iter(batch)
        self._rng.shuffle(tasks)
        places = [True] * len(tasks) + [False] * len(others)
        self._rng.shuffle(places)
        following, plain = iter(tasks), iter(others)
        return (next(following if is_task else plain) for is_task in places)

    # What asyncio and the product call ------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        future = _NumberedFuture(loop=self)
        future.number = next(self._numbers)
        return future

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        number = next(self._numbers)
        options["name"] = f"task-{number}"
        task = _NumberedTask(number, coro, loop=loop, **options)
        if self.dead:
            self._stillborn.append(task)
        return task

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        if self.dead:
            return asyncio.Handle(callback, args, self)
        return super().call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        if self.dead:
            return asyncio.TimerHandle(when, callback, args, self)
        return super().call_at(when, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        """What comes from the thread of a store: it may take some time to arrive."""
        due = max(self._arrival, self._now + self._rng.random() * self._lag)
        if not self._lag or due <= self._now:
            return self.call_soon(callback, *args, context=context)
        self._arrival = due + 1e-9  # later than this one: the order is kept
        return self.call_at(due, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Run a function of `asyncio.to_thread` on this thread, after a drawn time."""
        future = self.create_future()

        def work() -> None:
            if future.done():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - whatever it is, the waiter gets it
                future.set_exception(error)

        self.call_later(self._rng.random() * 0.02, work)
        return future

    def _process_events(self, event_list: Any) -> None:
        """There is no selector."""

    def _write_to_self(self) -> None:
        """There is no selector to be woken."""

    # What is left --------------------------------------------------------------------------------

    def armed_timers(self) -> list[asyncio.TimerHandle]:
        return [handle for handle in self._scheduled if not handle.cancelled()]

    def describe_tasks(self) -> str:
        """Every task that is not done, and where it waits."""
        lines = []
        for task in sorted(asyncio.all_tasks(self), key=hash):
            places = [f"{f.f_code.co_qualname}:{f.f_lineno}" for f in task.get_stack()]
            lines.append(f"  {task.get_name()} at {' < '.join(places)}")
        return "\n".join(lines)

    def abandon(self) -> None:
        """Forget everything that was going on, as the death of a process does. No callback is run
        any more. Coroutines are closed here and not by the garbage collector at some later time:
        what their `finally` blocks do goes nowhere, because nothing can be scheduled."""
        self.dead = True
        asyncio._set_running_loop(self)
        try:
            for task in sorted(asyncio.all_tasks(self), key=hash):
                _close_coroutine(task)
            while self._stillborn:
                _close_coroutine(self._stillborn.pop())
            self._ready.clear()
            self._scheduled.clear()
        finally:
            asyncio._set_running_loop(None)
        self.close()

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        if not self.dead:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]


def _is_step(handle: asyncio.Handle) -> bool:
    """Whether this handle is a step or a wake-up of a task, and not any other callback."""
    owner = getattr(getattr(handle, "_callback", None), "__self__", None)
    return isinstance(owner, asyncio.Task)


def _close_coroutine(task: asyncio.Task[Any]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):  # whatever it wanted to do on its way out
        task.get_coro().close()


class LoopClock(SystemClock):
    """The virtual time of a loop. `wall` is the wall-clock time at its beginning: it moves on from
    one loop to the next, as the records of a later daemon are later."""

    def __init__(self, loop: SeededLoop, wall: float = WALL) -> None:
        self._loop = loop
        self._wall = wall - START

    def time(self) -> float:
        return self._loop.time()

    def now(self) -> float:
        return self._loop.time() + self._wall
