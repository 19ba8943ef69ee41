"""Runs one command and ends it when the process that asked for it is gone, however that one went.

Started as ``python keeper.py PARENT REMOVE COMMAND...`` with a pipe from the parent as its standard input. It prints
the command's process id and keeps its standard output open until it ends, so that the parent sees its end there (what
the command prints goes to standard error). Then it waits for the first of three: the command ends; the pipe closes;
its own parent is another one (a fork of the parent may hold the pipe open). In the last two it kills the command and
removes the directory REMOVE, if that is not empty. On Linux the kernel kills the command if this process is killed
itself.

It imports nothing but the standard library, so that it starts in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

LOOK_SECONDS = 1.0
PR_SET_PDEATHSIG = 1


def main(parent: int, remove: str, command: list[str]) -> int:
    """Runs the command until it or the parent ends.

    Returns its exit status as a shell would, or 1 if the parent has ended and the command was killed.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # This process has one thread, so between fork and exec nothing of it can be held locked.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, preexec_fn=_die_with_parent)  # noqa: PLW1509
    os.write(1, b"%d\n" % child.pid)
    watched = [woken, 0]
    while child.poll() is None:
        ready = select.select(watched, [], [], LOOK_SECONDS)[0]
        if woken in ready:
            os.read(woken, 512)
        if os.getppid() != parent or 0 in ready:
            child.kill()
            child.wait()
            if remove:
                shutil.rmtree(remove, ignore_errors=True)
            return 1
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
