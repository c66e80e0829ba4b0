"""A tuning in a thread of its own: heard trial by trial, stopped between two, one at a time in a kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

from tpunb.errors import TpunbError
from tpunb.tuning.nouns import Trial, Tuning
from tpunb.tuning.tuner import Tuner

_ONE_AT_A_TIME = threading.Lock()  # two would slow each other down, and share random numbers


class TuningThread:
    """A tuning that runs beside the cells of a notebook.

    Parameters
    ----------
    make
        Returns the tuner; called here, where what is wrong with it is raised.
    carry
        Called in the thread before all else: `tpunb.tuning.carried.carried`.
    heard
        Called there with what is found so far, after each trial.
    ended
        Called there at the end, with what was found, and with what the tuning failed.

    Raises
    ------
    TpunbError
        Another one runs in this kernel.
    """

    def __init__(
        self,
        make: Callable[[], Tuner],
        *,
        carry: Callable[[], None],
        heard: Callable[[Tuning], None],
        ended: Callable[[Tuning, Exception | None], None],
    ) -> None:
        if not _ONE_AT_A_TIME.acquire(blocking=False):
            raise TpunbError("a tuning runs in this kernel", hint="stop() its panel, or wait() for its end")
        try:
            self._tuner = make()
        except BaseException:
            _ONE_AT_A_TIME.release()
            raise
        self._carry, self._heard, self._ended = carry, heard, ended
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tpunb-tuning", daemon=True)

    def start(self) -> None:
        """Begin, once."""
        self._thread.start()

    def stop(self) -> None:
        """Let the trial that runs now be the last."""
        self._stopped.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end.

        Raises
        ------
        TimeoutError
            After so many seconds.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the tuning still runs after {timeout:g} s")

    def _work(self) -> None:
        failure: Exception | None = None
        try:
            self._carry()
            self._hear()
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            failure = error
        except BaseException as error:  # noqa: BLE001  as of a program that calls sys.exit()
            failure = TpunbError(f"the tuning was ended by {type(error).__name__}")
        try:
            self._ended(self._tuner.tuning, failure)
        finally:
            _ONE_AT_A_TIME.release()

    def _hear(self) -> None:
        heard: list[Trial] = []
        with closing(self._tuner.trials()) as trials:
            for trial in trials:
                heard.append(trial)
                self._heard(Tuning(tuple(heard), said=tuple(self._tuner.said)))
                if self._stopped.is_set():
                    return
