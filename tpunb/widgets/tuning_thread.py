"""Runs a tuning in a thread: reports each trial, stops between two, one at a time in a kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

from tpunb.errors import TpunbError
from tpunb.tuning.results import Trial, Tuning
from tpunb.tuning.tuner import Tuner

_ONE_AT_A_TIME = threading.Lock()  # two would slow each other down, and share random numbers


class TuningThread:
    """A tuning that runs beside the cells of a notebook.

    Parameters
    ----------
    make
        Function that returns the tuner; called here, where its errors are raised.
    set_thread_locals
        Function to call in the thread first, of `tpunb.tuning.thread_locals.copy_thread_locals`.
    on_trial
        Callback with the result so far, after each trial, in the thread.
    on_end
        Callback with the result and the error that ended it, in the thread.

    Raises
    ------
    TpunbError
        If another one runs in this kernel.
    """

    def __init__(
        self,
        make: Callable[[], Tuner],
        *,
        set_thread_locals: Callable[[], None],
        on_trial: Callable[[Tuning], None],
        on_end: Callable[[Tuning, Exception | None], None],
    ) -> None:
        if not _ONE_AT_A_TIME.acquire(blocking=False):
            raise TpunbError("a tuning runs in this kernel", hint="stop() its panel, or wait() for its end")
        try:
            self._tuner = make()
        except BaseException:
            _ONE_AT_A_TIME.release()
            raise
        self._set_thread_locals, self._on_trial, self._on_end = set_thread_locals, on_trial, on_end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tpunb-tuning", daemon=True)

    def start(self) -> None:
        """Start, once."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current trial."""
        self._stopped.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end; raise TimeoutError after `timeout` seconds."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the tuning still runs after {timeout:g} s")

    def _work(self) -> None:
        failure: Exception | None = None
        try:
            self._set_thread_locals()
            self._run()
        except Exception as error:  # noqa: BLE001  nobody else would see it
            failure = error
        except BaseException as error:  # noqa: BLE001  a program may call sys.exit()
            failure = TpunbError(f"the tuning was ended by {type(error).__name__}")
        try:
            self._on_end(self._tuner.tuning, failure)
        finally:
            _ONE_AT_A_TIME.release()

    def _run(self) -> None:
        finished: list[Trial] = []
        with closing(self._tuner.trials()) as trials:
            for trial in trials:
                finished.append(trial)
                self._on_trial(Tuning(tuple(finished), messages=tuple(self._tuner.messages)))
                if self._stopped.is_set():
                    return
