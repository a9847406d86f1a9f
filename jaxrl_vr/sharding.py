"""The mesh, the rules that map logical axes to it, and moving arrays to and from it.

Code that owns arrays names their axes ("embed", "heads", ...); only the tables here say which mesh
axes those are split over. Not here: which axes a parameter has (models.params).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from pydantic import Field, model_validator

from jaxrl_vr.config import Config

Rules = Mapping[str, str | tuple[str, ...] | None]  # logical axis -> mesh axes, outermost first

HOST = "pinned_host"
"""Kind of memory that is the host's, and that devices reach."""

MESH_AXES = ("data", "fsdp", "context", "tensor", "expert")

TRAIN_RULES: Rules = {
    "layers": None,
    "micro": None,
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "ffn": "tensor",
    "batch": ("data", "fsdp"),
    "length": "context",
    "slots": ("data", "fsdp"),
}

# Weights stay whole over `data` and `fsdp`: gathering them at every decode step would cost more
# than the step itself. A decode step has no length to split, so devices of `context` take slots.
SAMPLE_RULES: Rules = {
    **TRAIN_RULES,
    "embed": None,
    "length": None,
    "slots": ("data", "fsdp", "context"),
}


class MeshConfig(Config):
    """Devices along each mesh axis; the product is the number of devices."""

    data: int = Field(default=-1, ge=-1)
    """Replicas that split the batch; -1 takes the devices the other axes leave."""
    fsdp: int = Field(default=1, ge=-1)
    """Devices that split the batch and the parameters; raise it when the state does not fit."""
    context: int = Field(default=1, ge=-1)
    """Devices that split the length of a row; raise it when one row's activations do not fit."""
    tensor: int = Field(default=1, ge=-1)
    """Devices that split heads, ffn and vocabulary; keep it within one fast interconnect."""
    expert: int = Field(default=1, ge=-1)
    """Devices that split the experts of a mixture-of-experts model."""

    @model_validator(mode="after")
    def _check_sizes(self) -> MeshConfig:
        sizes = {axis: getattr(self, axis) for axis in MESH_AXES}
        for axis, size in sizes.items():
            if size == 0:
                raise ValueError(f"mesh.{axis} = 0: use 1 for an axis that splits nothing")
        rest = [axis for axis, size in sizes.items() if size == -1]
        if len(rest) > 1:
            named = " and ".join(f"mesh.{axis}" for axis in rest)
            raise ValueError(
                f"{named} are -1: only one axis can take the rest; give a size to all but one"
            )
        return self


class MeshMismatch(ValueError):
    """Axes that do not make up the devices.

    Attributes:
      works: sizes of all axes that do.
    """

    def __init__(self, text: str, works: Mapping[str, int]):
        super().__init__(text)
        self.works = works


def axis_sizes(config: MeshConfig, num_devices: int) -> dict[str, int]:
    """Devices along each axis.

    Raises:
      MeshMismatch: the axes do not make up the devices.
    """
    sizes = {axis: getattr(config, axis) for axis in MESH_AXES}
    fixed = math.prod(size for size in sizes.values() if size != -1)
    rest = next((axis for axis, size in sizes.items() if size == -1), None)
    if num_devices % fixed or (rest is None and fixed != num_devices):
        many = {axis: n for axis, n in sizes.items() if n not in (1, -1)}
        asked = f"mesh: {' x '.join(f'{axis} {n}' for axis, n in many.items())} = {fixed}"
        if len(many) == 1:
            asked = f"mesh.{next(iter(many))} = {fixed}"
        elif not many:
            asked = "mesh: every axis is 1, which"
        verb = "does not divide" if rest else "does not make up"
        there = "the one device" if num_devices == 1 else f"the {num_devices} devices"
        works = _working_mesh(sizes, num_devices)
        named = ", ".join(f"mesh.{axis} = {size}" for axis, size in works.items())
        raise MeshMismatch(
            f"{asked} {verb} {there}; {named} works",
            {axis: works.get(axis, 1) for axis in MESH_AXES},
        )
    if rest is not None:
        sizes[rest] = num_devices // fixed
    return sizes


def placed_devices(shape: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
    """Devices in the order of a mesh of this shape, by where they are.

    Those of several slices split `data`, the first axis, whose exchanges are the fewest.

    Raises:
      ValueError: an axis finds no place among them, or `data` does not split over the slices.
    """
    slices: dict[int, list[Any]] = {}
    for device in devices:
        slices.setdefault(getattr(device, "slice_index", 0), []).append(device)
    if len(slices) > 1:
        check_slices(shape[0], len(slices))
        part = shape[0] // len(slices), *shape[1:]
        return np.concatenate([placed_devices(part, slices[i]) for i in sorted(slices)])
    try:
        # An axis may take part of one of the network's: 8 of the 16 chips of a side.
        return create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except (NotImplementedError, TypeError) as error:
        axes = " x ".join(f"{name} {size}" for name, size in zip(MESH_AXES, shape, strict=True))
        raise ValueError(
            f"mesh: {axes} finds no place on {len(devices)} devices of {devices[0].device_kind}; "
            "choose sizes that divide the sides of the slice"
        ) from error


def check_slices(data: int, num_slices: int) -> None:
    """
    Raises:
      ValueError: the axis `data` does not split over so many slices.
    """
    if data % num_slices:
        raise ValueError(
            f"mesh.data = {data} with {num_slices} slices: only data goes over the network between "
            f"slices; set mesh.data to a multiple of {num_slices}"
        )


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh over `devices` (default: all of every process) with the axes of `MESH_AXES`."""
    devices = jax.devices() if devices is None else list(devices)
    placed = placed_devices(tuple(axis_sizes(config, len(devices)).values()), devices)
    # Auto: shardings of inputs and constraints guide the compiler, which places the rest itself.
    return Mesh(placed, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def _working_mesh(sizes: Mapping[str, int], num_devices: int) -> dict[str, int]:
    """The asked mesh, each axis cut to a size that divides what is left, the rest to one axis."""
    rest = next((axis for axis, size in sizes.items() if size == -1), "data")
    left = num_devices
    works = {rest: num_devices}
    for axis, size in sizes.items():
        if axis != rest and size > 1:
            works[axis] = math.gcd(size, left)
            left //= works[axis]
    works[rest] = left
    return works


def spec(
    axes: Sequence[str | None],
    rules: Rules,
    mesh: Mesh | AbstractMesh,
    shape: Sequence[int] | None = None,
) -> PartitionSpec:
    """How an array with these logical axes is split over `mesh`.

    A mesh axis that a dimension's size is no multiple of is left out, and so is one that an
    earlier dimension uses: that dimension is then replicated over it. Axes of size 1 and trailing
    Nones are left out too, because jit tells specs apart that place an array alike.

    Args:
      axes: logical axis of each dimension; None is replicated.
      rules: logical axis -> mesh axes.
      mesh: its axes must hold all those that `rules` names.
      shape: sizes of the dimensions; without it, every dimension is taken to divide.
    """
    if shape is not None and len(shape) != len(axes):
        raise ValueError(f"axes {tuple(axes)} for shape {tuple(shape)}: give one axis a dimension")
    used: set[str] = set()
    entries: list[str | tuple[str, ...] | None] = []
    for dimension, axis in enumerate(axes):
        kept: list[str] = []
        parts = 1
        for mesh_axis in _mesh_axes(axis, rules, mesh):
            size = mesh.shape[mesh_axis]
            divides = shape is None or shape[dimension] % (parts * size) == 0
            if size > 1 and divides and mesh_axis not in used:
                kept.append(mesh_axis)
                used.add(mesh_axis)
                parts *= size
        entries.append(None if not kept else kept[0] if len(kept) == 1 else tuple(kept))
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def entry(
    axis: str, size: int, rules: Rules, mesh: Mesh | AbstractMesh
) -> str | tuple[str, ...] | None:
    """What stands in a spec for one dimension of this logical axis and size."""
    return (*spec((axis,), rules, mesh, (size,)), None)[0]


def _mesh_axes(axis: str | None, rules: Rules, mesh: Mesh | AbstractMesh) -> tuple[str, ...]:
    if axis is None:
        return ()
    if axis not in rules:
        raise ValueError(f"logical axis {axis!r} is not in the rules; they know {sorted(rules)}")
    found = rules[axis]
    mesh_axes = () if found is None else (found,) if isinstance(found, str) else found
    for mesh_axis in mesh_axes:
        if mesh_axis not in mesh.shape:
            raise ValueError(
                f"rule {axis!r} -> {found!r}: the mesh has no axis {mesh_axis!r}, only "
                f"{list(mesh.axis_names)}; make it with make_mesh"
            )
    return mesh_axes


def sharding_of(
    axes: Sequence[str | None], rules: Rules, mesh: Mesh, shape: Sequence[int] | None = None
) -> NamedSharding:
    """`spec` on its mesh."""
    return NamedSharding(mesh, spec(axes, rules, mesh, shape))


def constrain(x: jax.Array, axes: Sequence[str | None], rules: Rules = TRAIN_RULES) -> jax.Array:
    """Places an array of a computation by the rules, on the mesh that is set (`jax.set_mesh`).

    Without a mesh of ours, as when a model is used in other code, it returns `x` as it is.
    """
    mesh = current_mesh()
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, spec(axes, rules, mesh, x.shape))


def num_shards(
    axes: Sequence[str | None], shape: Sequence[int], rules: Rules = TRAIN_RULES
) -> tuple[int, ...]:
    """Into how many parts the rules split each dimension on the mesh that is set; 1 without one."""
    mesh = current_mesh()
    if mesh is None:
        return (1,) * len(shape)
    entries = tuple(spec(axes, rules, mesh, shape))
    names = [(e,) if isinstance(e, str) else e or () for e in entries]
    names += [()] * (len(shape) - len(names))
    return tuple(math.prod(mesh.shape[name] for name in of_axis) for of_axis in names)


def current_mesh() -> AbstractMesh | None:
    """The mesh that is set (`jax.set_mesh`), or None where none of ours is."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if set(MESH_AXES) <= set(mesh.axis_names) else None


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of an array of which every device holds a whole copy."""
    return NamedSharding(mesh, PartitionSpec())


def place(tree: Any, shardings: Any) -> Any:
    """Puts host arrays on devices; every process holds the whole of each and keeps its part.

    Args:
      tree: numpy arrays (or numbers); free to change afterwards.
      shardings: a tree like `tree`, or a prefix of it such as one sharding for all.
    """

    def one(sharding: jax.sharding.Sharding, array: Any) -> jax.Array:
        # A copy, because device_put shares memory with aligned numpy arrays on CPU.
        array = np.array(array, jax.dtypes.canonicalize_dtype(np.asarray(array).dtype))
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(
        lambda sharding, part: jax.tree.map(lambda array: one(sharding, array), part),
        shardings,
        tree,
        is_leaf=lambda x: isinstance(x, jax.sharding.Sharding),
    )


def to_host(tree: Any) -> Any:
    """Whole numpy copies of device arrays, alike in every process.

    Where an array is spread over processes this gathers it, so all of them must call it.
    """

    def one(x: Any) -> np.ndarray:
        if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
            assert isinstance(x.sharding, NamedSharding), f"{x.sharding} names no mesh"
            whole = NamedSharding(x.sharding.mesh, PartitionSpec())
            x = jax.jit(lambda x: x, out_shardings=whole)(x)
        return np.asarray(x)

    return jax.tree.map(one, tree)


def device_memory(mesh: Mesh) -> int:
    """Bytes of a device's memory; of the machine's, divided by its devices, on CPU."""
    device = next(iter(mesh.local_devices), mesh.devices.flat[0])
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return machine // mesh.devices.size


def local_bytes(tree: Any, *, on_host: bool = False) -> int:
    """Of one device, of arrays or their shapes with shardings.

    Args:
      tree: of the arrays.
      on_host: count what lies in the host's memory for it, in the place of its own.
    """
    return sum(
        math.prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize
        for a in jax.tree.leaves(tree)
        if (a.sharding.memory_kind == HOST) == on_host
    )
