"""How many cores there are to use."""

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(quota: Path = _QUOTA) -> int:
    """The cores that this process may run on, at least 1.

    A container may be given less time than its cores have: threads beyond that would only stop
    each other.

    Args:
        quota: where Linux says so: microseconds of every period, or "max", and the period.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        given, period = quota.read_text(encoding="ascii").split()
        share = max(int(given) // int(period), 1)
    except (OSError, ValueError, ZeroDivisionError):  # no quota, or none that can be read
        return cores or 1
    return min(cores or 1, share)
