"""All devices of all hosts as one row, and what is put on them.

    connect(coordinator="10.0.0.2:8476", processes=2, process=0)     # only where there are several hosts
    mesh = make_mesh()
    batch = spread(mesh, [sampler.shard(step, i) for i in local_shards(mesh)])

A batch has one shard for each device. A host makes the shards of its own devices and no others, and reads the
configurations of no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from exla.errors import OptionError

T = TypeVar("T")
AXIS = "shard"
"""The mesh's axis."""


def connect(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Join the other hosts; before anything else is asked of JAX.

    Args:
      coordinator: host:port of process 0; "auto" = as a TPU pod, Slurm or JAX_COORDINATOR_ADDRESS says; None = this
        host alone.
      processes: how many there are; None = as the surroundings say.
      process: the number of this one.

    Raises:
      OptionError: if a number is there without an address.
    """
    if coordinator is None:
        if processes is not None or process is not None:
            raise OptionError("--processes and --process need --coordinator host:port, the address of process 0")
        return
    if coordinator == "auto":
        jax.distributed.initialize(num_processes=processes, process_id=process)
    else:
        if processes is None or process is None:
            raise OptionError(f"--coordinator {coordinator} needs --processes (how many) and --process (which one)")
        jax.distributed.initialize(coordinator, num_processes=processes, process_id=process)


def is_first() -> bool:
    """Whether this process writes logs."""
    return jax.process_index() == 0


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """Devices in a row; all of all hosts if None."""
    return Mesh(np.array(jax.devices() if devices is None else devices), (AXIS,))


def local_shards(mesh: Mesh) -> list[int]:
    """The places in the row that are this host's."""
    return [i for i, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()]


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of what every device has whole."""
    return NamedSharding(mesh, PartitionSpec())


def spread(mesh: Mesh, shards: Sequence[T]) -> T:
    """One shard on each device.

    Args:
      mesh: the devices.
      shards: of `local_shards`, in their order, all of one shape.

    Returns:
      A batch whose arrays have a leading axis of all devices.
    """
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    stacked = jax.tree.map(lambda *x: np.stack(x), *shards)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), stacked)


def on_all(mesh: Mesh, tree: Any) -> Any:
    """The same numbers on every device; each host has them already."""
    sharding = replicated(mesh)

    def place(x: Any) -> jax.Array:
        value = np.asarray(x)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    return jax.tree.map(place, tree)


def check_agreement(what: str, digest: str) -> None:
    """Raise unless all hosts have the same hexadecimal digest.

    Raises:
      OptionError: if they differ.
    """
    if jax.process_count() == 1:
        return
    mine: np.ndarray = np.frombuffer(bytes.fromhex(digest), np.uint8)
    all_of_them = np.asarray(multihost_utils.process_allgather(mine))
    different = np.flatnonzero((all_of_them != all_of_them[0]).any(axis=-1))
    if len(different):
        raise OptionError(f"process {different[0]} has another {what} than process 0; give all of them the same files")
