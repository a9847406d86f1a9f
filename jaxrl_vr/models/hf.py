"""Hugging Face folders: config.json, safetensors, one tensor at a time.

`locate` finds or downloads a folder, `load` reads it into sharded parameters. Which tensor a
parameter is, and how it is laid out, follows from its `Param`. Not here: writing folders
(hf_export.py), tokenizers and chat templates (data.tokenizer), the run's own checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.hf_config import architecture_from_config
from jaxrl_vr.models.params import Param, declare, is_param
from jaxrl_vr.sharding import Rules, sharding_of

# A folder may hold the same weights in other formats too; those would only cost time and disk.
_WANTED_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
_UNWANTED_FILES = ("*/*", "consolidated*")

_READABLE_DTYPES = ("F64", "F32", "F16", "BF16")


def locate(path_or_id: str | Path, *, revision: str | None = None) -> Path:
    """The folder of a model: a local one, or a hub id downloaded into the hub's cache.

    Args:
      path_or_id: a folder with a config.json, or "organisation/name" on the Hugging Face hub.
      revision: branch, tag or commit of a hub id; None is its main branch.

    Raises:
      ValueError: neither a model folder nor an id that could be downloaded.
    """
    path = Path(path_or_id).expanduser()
    if path.exists():
        if not (path / "config.json").is_file():
            held = ", ".join(sorted(p.name for p in path.iterdir())[:8]) if path.is_dir() else ""
            raise ValueError(
                f"model {str(path_or_id)!r} is not a model folder: it has no config.json (it "
                f"{f'holds {held}' if held else 'is empty' if path.is_dir() else 'is a file'})"
            )
        if revision is not None:
            raise ValueError(
                f"revision = {revision!r} belongs to a hub id, but {str(path_or_id)!r} is a local "
                "folder; leave revision out"
            )
        return path
    if not is_hub_id(path_or_id):
        raise ValueError(
            f"model {str(path_or_id)!r}: no such folder, and it is not a hub id either (those "
            "read organisation/name); correct the path"
        )
    return _download(str(path_or_id), revision)


def is_hub_id(path_or_id: str | Path) -> bool:
    """Whether `locate` would ask the hub, because there is no such folder here."""
    is_here = Path(path_or_id).expanduser().exists()
    return not is_here and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(path_or_id)) is not None


def _download(hub_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # The base of HfHubHTTPError is the root of the HTTP library that the installed version uses.
    bases = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    network_errors = (OSError, HFValidationError, *bases)
    try:
        folder = snapshot_download(
            hub_id,
            revision=revision,
            allow_patterns=list(_WANTED_FILES),
            ignore_patterns=list(_UNWANTED_FILES),
        )
    except network_errors as error:
        if isinstance(error, GatedRepoError):
            fix = "ask for access on its page, then log in with `hf auth login`"
        elif isinstance(error, RevisionNotFoundError):
            fix = f"it has no revision {revision!r}"
        elif isinstance(error, RepositoryNotFoundError):
            fix = "the hub does not know it; correct the id, or `hf auth login` if it is private"
        elif isinstance(error, LocalEntryNotFoundError):
            fix = (
                "the hub cannot be reached and the cache does not hold it; go online, unset "
                "HF_HUB_OFFLINE if it is set, or give a local folder"
            )
        else:
            reason = str(error).strip() or "no reason given"
            fix = f"the download failed: {type(error).__name__}: {reason}"
        raise ValueError(f"model {hub_id!r}: no such local folder, so tried the hub: {fix}") from (
            error
        )
    return locate(folder)


def read_config(folder: str | Path) -> dict[str, Any]:
    """The content of a folder's config.json."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; give the folder of a model") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}; download it again") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds a {type(config).__name__}, not an object")
    return config


class _Tensor(NamedTuple):
    """One tensor in a safetensors file, known from the file's header."""

    path: Path
    shape: tuple[int, ...]
    dtype: str


def load(
    folder: str | Path, *, rules: Rules, mesh: jax.sharding.Mesh, dtype: str = "float32"
) -> tuple[Architecture, dict[str, Any]]:
    """Reads a model folder into parameters, each in its sharding.

    The host holds one parameter at a time beside the result, and of it only what the devices of
    this process need.

    Args:
      folder: holds config.json and model.safetensors, or model.safetensors.index.json and the
        files it names.
      rules: logical axis -> mesh axes.
      mesh: where the parameters go.
      dtype: what they are held in, whatever the file has.

    Raises:
      ValueError: a file or tensor is missing, has another shape, or is not the architecture's.
    """
    folder = Path(folder)
    arch = architecture_from_config(read_config(folder))
    declared = declare(arch)
    tensors = _tensors(folder)
    _check_tensors(folder, arch, declared, tensors)

    def read(p: Param) -> jax.Array:
        parts: dict[str, np.ndarray] = {}

        def part(index: Any) -> np.ndarray:
            # Devices that replicate a part share one copy of it on the host.
            if str(index) not in parts:
                parts[str(index)] = _read_part(p, index, tensors, dtype)
            return parts[str(index)]

        return jax.make_array_from_callback(
            p.shape, sharding_of(p.axes, rules, mesh, p.shape), part
        )

    return arch, jax.tree.map(read, declared, is_leaf=is_param)


def _tensors(folder: Path) -> dict[str, _Tensor]:
    """Name -> tensor of all safetensors files of a folder; reads headers only."""
    found: dict[str, _Tensor] = {}
    for path in _weight_files(folder):
        with _opened(path) as file:
            for name in file.keys():
                view = file.get_slice(name)
                found[name] = _Tensor(path, tuple(view.get_shape()), view.get_dtype())
    return found


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        other = sorted(p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".gguf"))
        raise ValueError(
            f"{folder} has neither {single.name} nor {index.name}"
            + (f", only {', '.join(other)}; convert the weights to safetensors" if other else "")
        )
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} holds no weight_map; download it again") from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{index} names {', '.join(missing)}, not in the folder; download again")
    return [folder / name for name in names]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(path, framework="np")
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); download or copy it again"
        ) from error
    with file:
        yield file


def _check_tensors(
    folder: Path,
    arch: Architecture,
    declared: Mapping[str, Any],
    tensors: Mapping[str, _Tensor],
) -> None:
    expected = {name: file_shape(p) for name, p, _ in named_tensors(declared)}
    # A tied head is the embedding again; inv_freq is a buffer that old files of llama still hold.
    ignored = re.compile(r".*\.rotary_emb\.inv_freq" + ("|lm_head\\.weight" if arch.tied else ""))
    problems = []
    for name, shape in expected.items():
        if name not in tensors:
            problems.append(f"tensor {name!r} {list(shape)} is missing")
        elif tensors[name].shape != shape:
            got = list(tensors[name].shape)
            problems.append(f"tensor {name!r}: expected shape {list(shape)}, got {got}")
        elif tensors[name].dtype not in _READABLE_DTYPES:
            problems.append(
                f"tensor {name!r}: dtype {tensors[name].dtype} is none of {_READABLE_DTYPES}"
            )
    for name in sorted(set(tensors) - set(expected)):
        if not ignored.fullmatch(name):
            problems.append(f"tensor {name!r} {list(tensors[name].shape)} is not expected")
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(
            f"{folder}: the weights do not fit its config.json ({arch.family}, {arch.layers} "
            f"layers, {'tied' if arch.tied else 'untied'}): {'; '.join(problems[:5])}{more}"
        )


def named_tensors(declared: Mapping[str, Any]) -> Iterator[tuple[str, Param, int | None]]:
    """(tensor in a file, its parameter, its layer) in the order of the tree."""
    for p in jax.tree.leaves(declared, is_leaf=is_param):
        if p.is_stacked:
            for layer in range(p.shape[0]):
                yield p.hf_name.format(layer=layer), p, layer
        else:
            yield p.hf_name, p, None


def _one(p: Param) -> tuple[tuple[str | None, ...], tuple[int, ...]]:
    """Axes and shape of one layer of a parameter, in our layout."""
    return (p.axes[1:], p.shape[1:]) if p.is_stacked else (p.axes, p.shape)


def file_shape(p: Param) -> tuple[int, ...]:
    """Shape of a parameter's tensor in a file, where heads and head_dim are one dimension."""
    merged: list[int] = []
    for axis, size in zip(*_one(p), strict=True):
        if axis == "head_dim" and merged:
            merged[-1] *= size
        else:
            merged.append(size)
    return tuple(merged[::-1] if p.is_transposed else merged)


def _read_part(
    p: Param, index: tuple[slice, ...], tensors: Mapping[str, _Tensor], dtype: str
) -> np.ndarray:
    """A rectangle of a parameter, `index` in our layout, reading no more than it needs."""
    with contextlib.ExitStack() as stack:
        # Files are closed after each parameter, which gives their mapped pages back.
        files: dict[Path, Any] = {}

        def one(name: str, window: tuple[slice, ...]) -> np.ndarray:
            path = tensors[name].path
            if path not in files:
                files[path] = stack.enter_context(_opened(path))
            return _from_file(files[path].get_slice(name), p, window)

        if not p.is_stacked:
            return np.ascontiguousarray(one(p.hf_name, index), jnp.dtype(dtype))
        layers = range(p.shape[0])[index[0]]
        sizes = [len(range(n)[s]) for n, s in zip(p.shape, index, strict=True)]
        part = np.empty(sizes, jnp.dtype(dtype))
        for i, layer in enumerate(layers):
            part[i] = one(p.hf_name.format(layer=layer), index[1:])
        return part


def _from_file(view: Any, p: Param, window: tuple[slice, ...]) -> np.ndarray:
    """A rectangle of one tensor, turned from the file's layout into ours."""
    axes, shape = _one(p)
    wanted: list[slice] = []
    sizes: list[int] = []
    for axis, size, piece in zip(axes, shape, window, strict=True):
        # Heads are read whole, because a part of head_dim is no rectangle of the file.
        start, stop, _ = (slice(None) if axis == "head_dim" else piece).indices(size)
        sizes.append(stop - start)
        if axis == "head_dim" and wanted:
            wanted[-1] = slice(wanted[-1].start * size, wanted[-1].stop * size)
        else:
            wanted.append(slice(start, stop))
    if p.is_transposed:
        turned = view[tuple(wanted[::-1])].T
    else:
        turned = view[tuple(wanted)]
    ours = turned.reshape(sizes)  # H Q -> H, Q
    return ours[
        tuple(
            s if axis == "head_dim" else slice(None) for axis, s in zip(axes, window, strict=True)
        )
    ]
