"""Keep each compiled program that a run's windows show, once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import polars as pl

from tpunb.errors import BadProfile
from tpunb.io import hlo
from tpunb.io.run_writer import RunWriter

_SAME = 0.99  # share of the instructions in a window that a program must have to be the one that ran


class ProgramKeeper:
    """Finds the programs that windows ran in XSpaces, and writes them.

    Attributes
    ----------
    missing
        Names of the instructions that ran, by host and id of each program that the run does not hold.
    """

    def __init__(self, writer: RunWriter) -> None:
        self.missing: dict[tuple[str, int], set[str]] = {}
        self._writer = writer
        self._seen: set[tuple[str, int]] = set()  # a program is searched for once
        self._rows: list[tuple[str, int, str, str]] = []

    def on_window(self, ran: Mapping[str, pl.DataFrame]) -> None:
        """Add the programs of a window to the missing ones: (program, hlo_op) by host."""
        for host, rows in ran.items():
            for (program,), names in rows.group_by("program"):
                key = host, int(program)
                if key not in self._seen:
                    self._seen.add(key)
                    self.missing[key] = {*names["hlo_op"].cast(pl.String)}

    def keep(self, host: str, data: bytes) -> None:
        """Write the missing programs of a host that an XSpace holds; damaged ones and others of their id are not."""
        from tpunb.io import xplane

        with suppress(BadProfile):
            held = xplane.programs(data, source="programs")
            for program in [program for of, program in self.missing if of == host and program in held]:
                name, proto = held[program]
                ran = self.missing[host, program]
                if len(ran & {*hlo.instructions(proto)["hlo_op"].cast(pl.String)}) >= _SAME * len(ran):
                    file = self._writer.program(proto.buffer[proto.start[0] : proto.stop[0]].tobytes())
                    self._rows.append((host, program, name, file))
                    del self.missing[host, program]

    def take(self) -> list[tuple[str, int, str, str]]:
        """Return (host, program, module, file) of the programs that were written since the last call."""
        rows, self._rows = self._rows, []
        return rows
