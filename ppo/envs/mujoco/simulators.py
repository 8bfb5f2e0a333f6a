"""Many simulations of one MuJoCo model, stepped on threads, seen as arrays [N, ...].

A simulator gives the fields of `MjData` that a task reads: `simulator["qpos"]` is [N, nq] and is
current after every `step`, as `data.qpos` is after `mj_step`. Both kinds step bit for bit as a
loop over one `MjData` each would.
"""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError
from numpy.typing import NDArray

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION.value
_NOTHING = mujoco.mjtStage.mjSTAGE_NONE.value


class SimulationFault(RuntimeError):
    """MuJoCo refused to go on with a simulation.

    Attributes:
        index: which.
    """

    def __init__(self, index: int, message: str) -> None:
        super().__init__(" ".join(message.split()))
        self.index = index


class Simulator(Protocol):
    """N simulations."""

    def __getitem__(self, field: str) -> NDArray[np.float64]:
        """A field of all simulations, [N, ...]; to be read, and overwritten by the next step."""

    def step(self, controls: NDArray[Any], n_substeps: int) -> None:
        """Apply controls [N, nu] for so many substeps of the model's time step.

        Raises:
            SimulationFault: for the first simulation that MuJoCo refuses to go on with.
        """

    def place(self, index: int, data: mujoco.MjData) -> None:
        """Put a simulation where `data` is."""

    def show(self, index: int, data: mujoco.MjData) -> None:
        """Put `data` where a simulation is, for rendering."""

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Everything that the next steps depend on; a copy."""

    def load_state(self, state: dict[str, NDArray[np.float64]]) -> None:
        """What `state` gave."""

    def close(self) -> None:
        """End the threads."""


class BatchSimulator:
    """MuJoCo's own batched stepping: no interpreter between the simulations.

    Args:
        model: the model that all share.
        n_simulations: N.
        fields: of `MjData`, beyond the state's own, that will be read.
        n_threads: that step, the caller's included.
    """

    def __init__(
        self, model: mujoco.MjModel, n_simulations: int, fields: Sequence[str], n_threads: int
    ) -> None:
        # Not persistent: one MjData for each thread stays in the cache, one for each simulation
        # would not.
        self._batch = Batch(model, n_simulations, n_threads)
        self._fields: dict[str, NDArray[np.float64]] = {
            name: self._batch.bind(name) for name in {"ctrl", *fields}
        }
        self._controls = self._fields["ctrl"]

    def __getitem__(self, field: str) -> NDArray[np.float64]:
        return self._fields[field]

    def step(self, controls: NDArray[Any], n_substeps: int) -> None:
        self._controls[:] = controls
        try:
            self._batch.step(nstep=n_substeps)
        except SimulationError as error:
            index = int(error.ids[0])
            raise SimulationFault(index, self._batch.error(index)) from error

    def place(self, index: int, data: mujoco.MjData) -> None:
        mujoco.mj_getState(self._batch.model, data, self._batch.state[index], _STATE)

    def show(self, index: int, data: mujoco.MjData) -> None:
        self._batch.get_data(index, data)

    def state(self) -> dict[str, NDArray[np.float64]]:
        return {"state": self._batch.state.copy()}

    def load_state(self, state: dict[str, NDArray[np.float64]]) -> None:
        self._batch.reset(stage=_NOTHING)
        self._batch.state[:] = state["state"]

    def close(self) -> None:
        """Nothing to do: the batch ends its threads when it is collected."""


class PoolSimulator:
    """One `MjData` per simulation, stepped on a pool of threads.

    For tasks that read contact forces, which take one more call after the step
    (`mj_rnePostConstraint`) that the batch does not make. Stepping releases the interpreter lock.

    Args:
        model: the model that all share.
        n_simulations: N.
        fields: of `MjData` that will be read.
        n_threads: that step, the caller's included.
    """

    def __init__(
        self, model: mujoco.MjModel, n_simulations: int, fields: Sequence[str], n_threads: int
    ) -> None:
        self._model = model
        self._datas = [mujoco.MjData(model) for _ in range(n_simulations)]
        self._controls = [data.ctrl for data in self._datas]
        self._live = {name: [getattr(data, name) for data in self._datas] for name in fields}
        self._fields = {name: np.stack(views) for name, views in self._live.items()}
        self._copies = [
            [(self._fields[name][index], views[index]) for name, views in self._live.items()]
            for index in range(n_simulations)
        ]
        self._helpers = min(n_threads, n_simulations) - 1
        self._pool = ThreadPoolExecutor(max(self._helpers, 1), "mujoco")

    def __getitem__(self, field: str) -> NDArray[np.float64]:
        return self._fields[field]

    def step(self, controls: NDArray[Any], n_substeps: int) -> None:
        # Whoever is free takes the next: simulations with many contacts take longer.
        places = itertools.count()
        others = [
            self._pool.submit(self._work, places, controls, n_substeps)
            for _ in range(self._helpers)
        ]
        self._work(places, controls, n_substeps)
        for other in others:
            other.result()

    def _work(
        self, places: "itertools.count[int]", controls: NDArray[Any], n_substeps: int
    ) -> None:
        model, datas = self._model, self._datas
        while (index := next(places)) < len(datas):
            data = datas[index]
            self._controls[index][:] = controls[index]
            try:
                mujoco.mj_step(model, data, nstep=n_substeps)
                mujoco.mj_rnePostConstraint(model, data)
            except mujoco.FatalError as error:
                raise SimulationFault(index, str(error)) from error
            self._read(index)

    def _read(self, index: int) -> None:
        for copy, live in self._copies[index]:
            copy[...] = live

    def place(self, index: int, data: mujoco.MjData) -> None:
        mujoco.mj_copyData(self._datas[index], self._model, data)
        self._read(index)

    def show(self, index: int, data: mujoco.MjData) -> None:
        mujoco.mj_copyData(data, self._model, self._datas[index])

    def state(self) -> dict[str, NDArray[np.float64]]:
        size = mujoco.mj_stateSize(self._model, _STATE)
        rows = np.empty((len(self._datas), size))
        for row, data in zip(rows, self._datas, strict=True):
            mujoco.mj_getState(self._model, data, row, _STATE)
        # Derived fields are one substep behind the state and cannot be computed from it.
        return {"state": rows, **{name: field.copy() for name, field in self._fields.items()}}

    def load_state(self, state: dict[str, NDArray[np.float64]]) -> None:
        for row, data in zip(state["state"], self._datas, strict=True):
            mujoco.mj_resetData(self._model, data)
            mujoco.mj_setState(self._model, data, row, _STATE)
        for name, field in self._fields.items():
            field[...] = state[name]
            for live, saved in zip(self._live[name], state[name], strict=True):
                live[...] = saved

    def close(self) -> None:
        self._pool.shutdown()
