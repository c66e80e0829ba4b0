"""Windows of JAX on GPUs, by sessions that the thread that trains begins and ends.

XLA's profiler leaves CUPTI as a session ends. Where another thread launches a CUDA graph meanwhile, as beside a
profiler service, that ends the process: jax issue 40260; on an H100 with JAX 0.11 two of three captured trainings,
within the first windows. Of eight with sessions that begin and end between steps it ended none.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from tpunb.errors import TpunbError
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.sources.between_steps import BetweenSteps
from tpunb.text import format_error

_kept: list[Any] = []
"""Sessions that no step ended: one that is collected ends in any thread."""


def binding() -> Any | None:
    """Return JAX's binding of the profiler if its devices are GPUs; None otherwise."""
    jax, library = sys.modules["jax"], sys.modules.get("jax._src.lib")
    if not any(device.platform == "gpu" for device in jax.local_devices()):
        return None
    found = getattr(library, "_profiler", None) or getattr(getattr(library, "xla_client", None), "profiler", None)
    return found if hasattr(found, "ProfilerSession") and hasattr(found, "ProfileOptions") else None


def window(profiler: Any, seconds: float, between: BetweenSteps, stopped: threading.Event) -> bytes:
    """Profile for `seconds`, or until `stopped`, and return the XSpace.

    Raises
    ------
    TpunbError
        If another session profiles, or no step begins or ends.
    """
    options = profiler.ProfileOptions()
    options.include_dataset_ops, options.enable_hlo_proto = True, False
    options.host_tracer_level, options.python_tracer_level = LIMITS.host_tracer_level, 0
    if hasattr(options, "raise_error_on_start_failure"):
        options.raise_error_on_start_failure = True
    try:
        session = between.call(lambda: profiler.ProfilerSession(options), stopped, anywhere=False)
        stopped.wait(seconds)
        _kept.append(session)
        data = between.call(session.stop, stopped, anywhere=False)
        _kept.remove(session)
    except TpunbError:
        raise
    except Exception as error:  # of the binding
        raise TpunbError(f"the profiler of jax failed: {format_error(error)}") from error
    return bytes(data)
