"""`python -m ppo.worker CORE PARENT ARGUMENTS...`: a command confined to one core.

It ends with the process that started it, however that one ends: a sweep that was killed leaves no
run behind. SIGTERM, as from a shell, so that the run saves first.
"""

import ctypes
import os
import signal
import sys

from ppo.cli import main

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ask Linux for SIGTERM at the parent's end; elsewhere nothing does this."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it ended before it was asked
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    core, parent, *arguments = sys.argv[1:]
    die_with(int(parent))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core)})
    main(arguments)
