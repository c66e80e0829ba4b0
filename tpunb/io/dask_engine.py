"""Reduce parts of a job on the workers of a Dask cluster, which get names of files and return statistics."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from typing import Any
from uuid import uuid4

from tpunb.errors import TpunbError, need, wrong_type
from tpunb.io.cluster_load import Numbered, Part, reduced
from tpunb.text import format_error, plain

_CONNECT_S = 10  # to reach a scheduler, and until it has a worker
_TURN_S = 5.0  # between two looks at the cluster
_SETTLE_S, _SETTLE_TURN_S = 30.0, 0.1  # until a worker starts without its nanny, and between two looks at it
_RESTART = "1h"  # until a worker that was killed may be given up
_TURNS = 24  # without a worker, until the cluster counts as lost
_START = "start one with `dask scheduler` and `dask worker`, or use distributed.LocalCluster()"


@contextmanager
def connected(client: Any) -> Iterator[DaskEngine]:
    """Yield the engine of a ``distributed.Client`` or of the scheduler at an address.

    Raises TpunbError if the scheduler cannot be reached, has no workers, or these have other versions.
    """
    distributed = need("distributed", extra="dask")
    if isinstance(client, str):
        try:
            connection = distributed.Client(client, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            reason = f"the scheduler {plain(client)} cannot be reached: {format_error(error)}"
            raise TpunbError(reason, hint=f"check its address, or {_START}") from error
        with connection:
            yield DaskEngine(connection)
        return
    if not isinstance(client, distributed.Client) or client.asynchronous:
        raise wrong_type("load", "client", "be a synchronous distributed.Client or the address of a scheduler", client)
    from dask import config

    with config.set({"distributed.deploy.lost-worker-timeout": _RESTART}):  # of a LocalCluster; 15 s by default
        yield DaskEngine(client)


class DaskEngine:
    """The workers of a client.

    A file that kills its worker more times than the scheduler allows (by default 3) gives no host.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._name = client.scheduler.address if client.scheduler is not None else "of the client"
        self._job = uuid4().hex
        self._check_running()
        try:
            client.wait_for_workers(1, timeout=_CONNECT_S)
            of_workers = client.run(versions)
        except TimeoutError:
            raise TpunbError(f"the scheduler {self._name} has no workers", hint=_START) from None
        except ImportError as error:
            reason = f"workers of {self._name} cannot import tpunb: {format_error(error)}"
            raise TpunbError(reason, hint="install tpunb on the workers, in the version of this process") from error
        for worker, theirs in of_workers.items():
            if other := [f"{name} {theirs.get(name)}" for name, here in versions().items() if theirs.get(name) != here]:
                mine = ", ".join(f"{name} {here}" for name, here in versions().items())
                reason = f"worker {worker} has {', '.join(other)}, this process has {mine}"
                raise TpunbError(reason, hint="install the same versions on the workers")

    def parts(self, chunks: Sequence[Numbered]) -> Iterator[Part]:
        """Yield the parts of files in order."""
        futures = [self._submit(chunk) for chunk in chunks]
        try:
            kept: list[Part | str] = []
            for number, chunk in enumerate(chunks):
                answer = kept.pop(0) if kept else self._answer(futures[number])
                if isinstance(answer, str) and not kept:  # the next worker to be killed takes its results along
                    kept = [self._answer(future) for future in futures[number + 1 :]]
                yield answer if isinstance(answer, Part) else self._alone(chunk, answer)
        finally:
            self.client.cancel(futures)

    def part(self, chunk: Numbered) -> Part:
        """Return one part."""
        answer = self._answer(self._submit(chunk))
        return answer if isinstance(answer, Part) else self._alone(chunk, answer)

    def _submit(self, chunk: Numbered) -> Any:
        return self.client.submit(settled, [(number, str(file)) for number, file in chunk], self._job, pure=False)

    def _answer(self, future: Any) -> Part | str:
        """Return a part, or the reason if it killed its workers."""
        from distributed import KilledWorker

        try:
            self._wait([future])
            part: Part = future.result()
            return part
        except KilledWorker as error:
            return f"killed its worker {error.allowed_failures + 1} times"
        except (CancelledError, OSError) as error:
            raise self._lost(format_error(error)) from error
        finally:
            future.release()  # else it is computed again where its worker is lost

    def _alone(self, chunk: Numbered, reason: str) -> Part:
        """Return a part from its files one by one, so that none is killed by another."""
        if len(chunk) == 1:
            return Part(lost={chunk[0][0]: reason})
        return sum((self.part([file]) for file in chunk), Part())

    def _wait(self, futures: Sequence[Any]) -> None:
        """Wait until all are done; raise if there is nobody who could do them."""
        from distributed import wait

        idle = 0  # turns, since the clock of a machine that slept has moved on
        while idle < _TURNS:
            try:
                wait(futures, timeout=_TURN_S)  # type: ignore[no-untyped-call]
                return
            except TimeoutError:
                self._check_running()
            idle = 0 if self.client.nthreads() else idle + 1
        raise self._lost("no worker is left")

    def _check_running(self) -> None:
        if self.client.status != "running":
            raise self._lost(f"the client is {self.client.status}")

    def _lost(self, reason: str) -> TpunbError:
        return TpunbError(
            f"lost the scheduler {self._name}: {reason}", hint="check that the cluster runs, and load again"
        )


@cache
def _settle() -> None:
    """Wait once in each process until its nanny knows it: a worker that is killed before is not replaced."""
    from distributed import get_client, get_worker

    worker = get_worker()
    end = time.monotonic() + _SETTLE_S
    while worker.nanny and time.monotonic() < end:
        answers = get_client().run(_is_up, workers=[worker.address], nanny=True, on_error="ignore")
        if any(answers.values()):
            return
        time.sleep(_SETTLE_TURN_S)


def _is_up(dask_worker: Any) -> bool:
    """Return whether a nanny knows that its worker runs."""
    process = dask_worker.process
    return process is not None and {dask_worker.status.name, process.status.name} == {"running"}


def settled(files: Numbered, job: str) -> Part:
    """Return a part: what a worker does."""
    _settle()
    return reduced(files, job)


def versions() -> dict[str, str]:
    """Return the versions that must be alike where statistics are computed and merged."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"tpunb": version("tpunb"), "polars": version("polars"), "Python": python}
