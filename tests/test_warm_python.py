"""A warm Python serves on, whatever the programs do that it forks for."""

import subprocess

import pytest
from warm_python import warm_python

TIMES = 40
KILLS = "import os, sys; os.kill(int(sys.stdin.readline()), 9); os._exit(0)"


@pytest.mark.live
def test_a_program_that_ends_with_its_child_leaves_the_server_whole():
    python = warm_python(("json",))
    for _ in range(TIMES):
        program = subprocess.Popen([*python, "-c", KILLS], stdin=subprocess.PIPE, text=True)
        program.communicate(f"{program.pid}\n")  # the child kills what stands for it, and ends
    done = subprocess.run([*python, "-c", "print(1)"], capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr
