"""Environments in processes of their own: Gymnasium's, with the care that a long run needs.

Ctrl-C reaches the trainer alone, a worker does not outlive it, a dead worker is named, and
closing always ends.
"""

import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from multiprocessing import connection
from typing import Any, cast

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import _async_worker

from ppo.envs.quiet import ShownKinds, quiet_mujoco, share_shown_kinds, shown_kinds
from ppo.errors import EnvironmentFault
from ppo.plain_warnings import print_warning, warnings_shown_by

_CLOSE_SECONDS = 3.0  # for all workers together, before they are killed
_DEATH_SECONDS = 5.0  # between a broken pipe and the end of the process behind it


class Workers(AsyncVectorEnv[Any, Any]):
    """`AsyncVectorEnv` whose failures are EnvironmentFaults, and whose close cannot hang."""

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        *,
        env_id: str,
        autoreset_mode: AutoresetMode,
        context: str | None,
    ) -> None:
        processes = multiprocessing.get_context(context)
        shown = processes.RawArray("L", list(shown_kinds())), processes.Lock()
        self._env_id = env_id
        self.processes = []
        self.parent_pipes = []
        try:
            with _signals_held_back():
                super().__init__(
                    env_fns,
                    copy=True,
                    context=context,
                    worker=partial(_worker, shown),
                    autoreset_mode=autoreset_mode,
                )
        except (EOFError, ConnectionError) as error:
            fault = self._death()
            self.close()
            raise fault from error
        except OSError as error:
            self.close()
            raise EnvironmentFault(
                f"cannot start {len(env_fns)} environment processes: {error}; "
                "use fewer env.n_envs or env.backend: sync"
            ) from error
        except BaseException:
            self.close()
            raise

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all; a worker's end or failure is an EnvironmentFault."""
        try:
            return super().reset(seed=seed, options=options)
        except (EOFError, OSError) as error:
            raise self._death() from error

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all; a worker's end or failure is an EnvironmentFault."""
        try:
            return super().step(actions)
        except (EOFError, OSError) as error:
            raise self._death() from error

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ask every worker to close, wait a little, then kill: whatever state they are in."""
        for pipe in self.parent_pipes:
            with suppress(OSError, ValueError):  # gone, or closed by an earlier failure
                if pipe is not None:
                    pipe.send(("close", None))
        patience = 0.0 if terminate else _CLOSE_SECONDS if timeout is None else timeout
        deadline = time.monotonic() + patience
        started = [process for process in self.processes if process.pid is not None]
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in started:
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self.parent_pipes:
            if pipe is not None:
                pipe.close()

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raise what the first failed worker reported, without Gymnasium's log of it."""
        if all(successes):
            return
        try:
            index, kind, error, trace = self.error_queue.get(timeout=_DEATH_SECONDS)
        except queue.Empty:  # killed while it reported
            raise self._death() from None
        # Whatever the task does is named already; what is not comes from around it.
        said = " ".join(str(error).split()) or kind.__name__
        named = said if said.startswith("environment ") else f"environment {index} failed: {said}"
        fault = EnvironmentFault(named)
        fault.add_note(trace)
        raise fault

    def _death(self) -> EnvironmentFault:
        """What to say of a worker that is no more."""
        by_sentinel = {p.sentinel: p for p in self.processes if p.pid is not None}
        for sentinel in connection.wait(list(by_sentinel), timeout=_DEATH_SECONDS):
            process = by_sentinel[cast("int", sentinel)]
            process.join(_DEATH_SECONDS)  # it lets go of the sentinel a moment before it is gone
            return EnvironmentFault(
                f"environment {self.processes.index(process)} ({self._env_id}): its process died "
                f"({_how(process.exitcode)}); if memory ran out, use fewer env.n_envs; "
                "env.backend: sync shows what the environment itself says"
            )
        return EnvironmentFault("the connection to an environment's process broke")


def _how(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"exit status {exitcode}"
    with suppress(ValueError):
        return signal.Signals(-exitcode).name
    return f"signal {-exitcode}"


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back while workers start.

    A forked worker inherits the trainer's handlers and would run them until it has set its own.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _worker(
    shown: tuple[ShownKinds, AbstractContextManager[Any]],
    index: int,
    env_fn: Any,
    pipe: connection.Connection,
    parent_pipe: connection.Connection,
    *rest: Any,
) -> None:
    """Gymnasium's worker, set up so that only its parent decides when it ends."""
    _settle(shown)
    error_queue = rest[1]
    try:
        with warnings_shown_by(print_warning):
            _async_worker(index, env_fn, pipe, parent_pipe, *rest)
    except (OSError, EOFError):
        return  # the trainer is gone or has closed the pipe: nobody is left to tell
    except Exception as error:  # the environment could not be made here
        said = f"environment {index} could not be made: {type(error).__name__}: {error}"
        error_queue.put((index, RuntimeError, " ".join(said.split()), traceback.format_exc()))
        with suppress(OSError, EOFError):
            # Answer the first question; gone before it is asked would look like a death.
            pipe.recv()
            pipe.send((None, False))


def _settle(shown: tuple[ShownKinds, AbstractContextManager[Any]]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(os, "setpgid"):
        # A SIGTERM to the trainer's group (`timeout` sends one) is the trainer's to answer.
        with suppress(OSError):
            os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    # A fork may have inherited a progress display in their place. What an environment prints is
    # never the command's result.
    sys.stdout = sys.stderr = sys.__stderr__
    share_shown_kinds(*shown)
    quiet_mujoco()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
