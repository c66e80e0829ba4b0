"""Send the rates of a capture to trackers while it runs, and its verdict at the end.

Each tracker is reached through the client that the program has imported; nothing else is imported. One that fails is
named in one line, and gets nothing more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tpunb.errors import TpunbError, warn_user
from tpunb.frames.conversion import write_atomically
from tpunb.instrument.registry import loaded
from tpunb.text import format_error, plain

VERDICT = "tpunb/verdict"


class _Tensorboard:
    """Event files beside the run, by TensorFlow's writer or one of PyTorch's."""

    def __init__(self, folder: Path) -> None:
        self._summary: Any = getattr(loaded("tensorflow"), "summary", None)
        writers = (getattr(loaded(name), "SummaryWriter", None) for name in ("torch.utils.tensorboard", "tensorboardX"))
        kind = next(filter(None, writers), None)
        if kind is None and not hasattr(self._summary, "scalar"):  # which TensorFlow has with tensorboard alone
            raise _no_client("tensorboard", "import torch.utils.tensorboard or tensorboardX")
        make: Any = kind or self._summary.create_file_writer  # type: ignore[union-attr]
        self._writer: Any = make(str(folder))
        self._is_of_tensorflow = kind is None

    def send(self, metrics: Mapping[str, float], step: int, verdict: str | None) -> None:
        """Write a step of scalars, and the verdict as text."""
        if self._is_of_tensorflow:
            with self._writer.as_default(step=step):
                for name, value in metrics.items():
                    self._summary.scalar(name, value)
                if verdict is not None:
                    self._summary.text(VERDICT, verdict)
        else:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)
            if verdict is not None:
                self._writer.add_text(VERDICT, verdict, step)
        self._writer.flush()


class _Mlflow:
    """The active run of the program, whichever thread began it; else a run of its own."""

    def __init__(self, _: Path) -> None:
        if (mlflow := loaded("mlflow")) is None:
            raise _no_client("mlflow", "import mlflow")
        self._mlflow, self._client = mlflow, mlflow.MlflowClient()
        self._run: str | None = None
        self._made: str | None = None

    def send(self, metrics: Mapping[str, float], step: int, verdict: str | None) -> None:
        """Log metrics, and the verdict as a tag; end the run if it is its own."""
        if self._run is None:
            self._run = self._active()
        if self._run is None:
            named = self._mlflow.get_experiment_by_name(os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default"))
            self._run = self._made = self._client.create_run(named.experiment_id if named else "0").info.run_id
        for name, value in metrics.items():
            self._client.log_metric(self._run, name, value, step=step)
        if verdict is not None:
            self._client.set_tag(self._run, VERDICT, verdict)
            if self._made is not None:
                self._client.set_terminated(self._made)

    def _active(self) -> str | None:
        stacks = getattr(loaded("mlflow.tracking.fluent"), "_active_run_stack", None)
        of_threads: dict[int, Any] = getattr(stacks, "get_all_thread_values", dict)()
        runs = [run for stack in of_threads.values() for run in stack or ()] or [self._mlflow.active_run()]
        return None if runs[-1] is None else str(runs[-1].info.run_id)


class _Wandb:
    """The active run of the program, whose own next log has the rates with it."""

    def __init__(self, _: Path) -> None:
        if loaded("wandb") is None:
            raise _no_client("wandb", "import wandb")

    def send(self, metrics: Mapping[str, float], step: int, verdict: str | None) -> None:
        """Log metrics without a step of their own; the last are in the summary, with the verdict."""
        run: Any = getattr(loaded("wandb"), "run", None)
        if run is None:
            raise TpunbError("no run of wandb is active", hint="call wandb.init() in the captured block")
        if verdict is None:
            run.log({**metrics}, commit=False)
        else:
            run.summary.update({**metrics, VERDICT: verdict})


class _Prometheus:
    """A file in the text format, as the node exporter's textfile collector reads it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder if folder.suffix == ".prom" else folder.with_suffix(".prom")
        self._run = plain(folder.parent.name).replace("\\", "/").replace('"', "'")

    def send(self, metrics: Mapping[str, float], step: int, verdict: str | None) -> None:
        """Write the file anew."""
        names = {re.sub(r"\W", "_", name): value for name, value in metrics.items()}
        lines = [f'# TYPE {name} gauge\n{name}{{run="{self._run}"}} {value!r}\n' for name, value in names.items()]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, "".join(lines).encode())


_KINDS: dict[str, Callable[[Path], Any]] = {
    "tensorboard": _Tensorboard,
    "mlflow": _Mlflow,
    "wandb": _Wandb,
    "prometheus": _Prometheus,
}
TRACKERS = (*_KINDS,)


def _no_client(name: str, how: str) -> TpunbError:
    return TpunbError(f"the program has not imported a client of {name}", hint=f"{how}, or leave out {name}")


class Trackers:
    """Trackers of a capture, each begun with the first rates that it gets.

    Parameters
    ----------
    names
        Names of trackers; of "tensorboard" and "prometheus" with a path after a colon, beside the run without one.
    folder
        Folder of the run, None if it is not on this machine.
    """

    def __init__(self, names: Iterable[str], folder: Path | None) -> None:
        self._waiting = [*names]
        if isinstance(names, str) or (unknown := [name for name in self._waiting if _kind(name) not in _KINDS]):
            wrong = names if isinstance(names, str) else unknown[0]
            raise ValueError(
                f"The to parameter of capture must be a list of {', '.join(_KINDS)}. Got {wrong!r} instead."
            )
        self._folder, self._begun = folder, dict[str, Any]()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def send(self, metrics: Mapping[str, float], step: int, verdict: str | None = None) -> None:
        """Send metrics of a step, and the verdict at the end; it never raises."""
        for name in [*self._waiting]:
            try:
                if name not in self._begun:
                    self._begun[name] = _KINDS[_kind(name)](self._path(name))
                self._begun[name].send(metrics, step, verdict)
            except Exception as error:  # noqa: BLE001  of a client, a disk or a network: the training continues
                self._waiting.remove(name)
                warn_user(f"{plain(name)} gets no rates: {format_error(error)}", RuntimeWarning, 3)

    def _path(self, name: str) -> Path:
        kind, _, path = name.partition(":")
        if path:
            return Path(path)
        if self._folder is None and kind in ("tensorboard", "prometheus"):
            raise TpunbError("the run is not in a folder on this machine", hint=f"give a path: {kind}:PATH")
        return Path(self._folder or ".", kind)


def _kind(name: str) -> str:
    return str(name).partition(":")[0]


def live_metrics(status: Any) -> dict[str, float]:
    """Return the figures of a capture that continues, by the names of `Report.to_metrics`."""
    productive = None if status.productive is None else status.productive * status.seconds
    found = {
        "workload/total_elapsed_time": status.seconds,
        "workload/goodput_time": productive,
        "workload/badput_time": None if productive is None else status.seconds - productive,
        "tpunb/goodput": status.productive,
        "tpunb/samples_per_second": status.samples_per_s,
        "tpunb/tokens_per_second": status.tokens_per_s,
    }
    return {name: float(value) for name, value in found.items() if value is not None}
