"""Hugging Face folders in and out: config.json, safetensors, one tensor at a time.

`locate` finds or downloads a folder, `load` reads it into sharded parameters, `export` writes one
that `transformers` loads. Which tensor a parameter is, and how it is laid out, follows from its
`Param`. Not here: tokenizers and chat templates (data.tokenizer), the run's own checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.hf_config import CLASSES, architecture_from_config, config_of
from jaxrl_vr.models.params import Param, Params, declare, is_param
from jaxrl_vr.sharding import Rules, sharding_of, to_host

FileDtype = Literal["float32", "bfloat16"]

# A folder may hold the same weights in other formats too; those would only cost time and disk.
_WANTED_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
_UNWANTED_FILES = ("*/*", "consolidated*")

_TO_FILE_DTYPE = {"float32": "F32", "bfloat16": "BF16"}
_READABLE_DTYPES = ("F64", "F32", "F16", "BF16")
# In an exported config.json: the files of the export, which the next one may replace.
_EXPORTED = "exported_by_jaxrl_vr"


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
    expected = {name: file_shape(p) for name, p, _ in _named(declared)}
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


def _named(declared: Mapping[str, Any]) -> Iterator[tuple[str, Param, int | None]]:
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


def export(
    folder: str | Path,
    arch: Architecture,
    params: Params,
    *,
    dtype: FileDtype = "float32",
    source_config: Mapping[str, Any] | None = None,
    eos_ids: Sequence[int] = (),
    save_tokenizer: Callable[[Path], None] | None = None,
    max_file_bytes: int = 5_000_000_000,
) -> None:
    """Writes a model folder that `transformers` (and `load`) reads; whole, or not at all.

    Every process must call it, the first one writes. The host holds one tensor at a time.

    Args:
      folder: new or empty, or an earlier export and nothing else, which is replaced once the new
        one is complete.
      arch: sizes and family.
      params: as `declare` describes.
      dtype: of the file; float32 keeps float32 parameters bit for bit.
      source_config: config.json of the model that training began with; its token ids and whatever
        else it holds are kept.
      eos_ids: tokens that end a completion, for generation_config.json; empty takes those of
        `source_config`.
      save_tokenizer: called with the unfinished folder, to put the tokenizer's files into it.
      max_file_bytes: weights are split into files of at most this size (or one tensor).

    Raises:
      ValueError: the folder holds something else, or parameters do not fit `arch`.
    """
    folder = Path(folder).expanduser().resolve()  # "." has no name, and a link is followed
    if dtype not in _TO_FILE_DTYPE:
        raise ValueError(f"dtype = {dtype!r}: export as one of {list(_TO_FILE_DTYPE)}")
    _check_params(arch, params)
    check_export_folder(folder)
    config, generation = _configs(arch, dtype, source_config, eos_ids)
    if jax.process_index() != 0:
        for _ in _tensor_data(arch, params, dtype):
            pass
        return
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _write_json(partial / "config.json", config)
        _write_json(partial / "generation_config.json", generation)
        _write_weights(partial, arch, params, dtype, max_file_bytes)
        if save_tokenizer is not None:
            save_tokenizer(partial)
        _write_json(partial / "config.json", config | {_EXPORTED: sorted(_files(partial))})
        _put_in_place(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_params(arch: Architecture, params: Params) -> None:
    def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_param)
        return {jax.tree_util.keystr(path): tuple(leaf.shape) for path, leaf in leaves}

    expected, got = shapes(declare(arch)), shapes(params)
    for path in {**expected, **got}:
        if expected.get(path) != got.get(path):
            raise ValueError(
                f"params{path}: expected shape {expected.get(path, 'none: no such parameter')}, "
                f"got {got.get(path, 'no such parameter')}; export with the architecture of params"
            )


def check_export_folder(folder: str | Path) -> None:
    """Refuses a folder that `export` cannot replace without losing what is not its own.

    Raises:
      ValueError: it is a file or the working directory, or holds anything that an earlier export
        did not write.
    """
    folder = Path(folder).expanduser().resolve()
    here = Path.cwd()
    if folder == here or folder in here.parents:
        problem = "holds the working directory, which cannot be replaced"
    elif folder.is_dir():
        held = _files(folder)
        own = read_config(folder).get(_EXPORTED) if "config.json" in held else None
        others = sorted(held - set(own)) if isinstance(own, list) else sorted(held)
        if not others:
            return
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if others[3:] else "")
        if isinstance(own, list):
            raise ValueError(
                f"export folder {str(folder)!r} is an earlier export and would be replaced, but it "
                f"also holds {shown}; move that away, or choose another folder"
            )
        problem = f"exists and is not an earlier export: it holds {shown}"
    elif folder.exists():
        problem = "is a file"
    else:
        return
    raise ValueError(f"export folder {str(folder)!r} {problem}; choose a new or an empty folder")


def _files(folder: Path) -> set[str]:
    """Paths of all files in a folder, and of links, relative to it."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def _configs(
    arch: Architecture, dtype: str, source: Mapping[str, Any] | None, eos_ids: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Content of config.json and generation_config.json."""
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id")
    if source is None:
        # Explicit nulls, because transformers puts a family's own ids where a key is missing.
        config = {**config_of(arch), **dict.fromkeys(tokens)}
        config["eos_token_id"] = list(eos_ids) or None
    else:
        described = architecture_from_config(source)
        if described != arch:
            raise ValueError(f"source_config describes {described!r}, params are of {arch!r}")
        dropped = ("dtype", "torch_dtype", _EXPORTED)
        config = {k: v for k, v in source.items() if k not in dropped}
    config["architectures"] = [CLASSES[arch.family]]
    config["torch_dtype"] = dtype  # the spelling that transformers 4 and 5 both read
    generation = {name: config.get(name) for name in tokens}
    if eos_ids:
        generation["eos_token_id"] = list(eos_ids)
    return config, {name: value for name, value in generation.items() if value is not None}


def _tensor_data(arch: Architecture, params: Params, dtype: str) -> Iterator[np.ndarray]:
    """The tensors of `_named`, one at a time, in the file's layout and dtype."""
    declared = declare(arch)
    arrays = iter(jax.tree.leaves(params))
    previous, array = None, None
    for _, p, layer in _named(declared):
        if p is not previous:
            previous, array = p, next(arrays)
        assert array is not None, "more parameters than arrays"
        own = to_host(array if layer is None else _layer(array, layer))
        shape = file_shape(p)
        turned = own.reshape(shape[::-1]).T if p.is_transposed else own.reshape(shape)  # H, Q -> HQ
        yield np.ascontiguousarray(turned, jnp.dtype(dtype))


@jax.jit
def _layer(stacked: jax.Array, layer: jax.Array | int) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(stacked, layer, keepdims=False)


def _write_weights(
    folder: Path, arch: Architecture, params: Params, dtype: str, max_file_bytes: int
) -> None:
    itemsize = jnp.dtype(dtype).itemsize
    files: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, p, _ in _named(declare(arch)):
        size = math.prod(file_shape(p)) * itemsize
        if files[-1] and filled + size > max_file_bytes:
            files.append({})
            filled = 0
        files[-1][name] = file_shape(p)
        filled += size
    data = _tensor_data(arch, params, dtype)
    names = ["model.safetensors"]
    if len(files) > 1:
        names = [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    total = 0
    for name, shapes in zip(names, files, strict=True):
        with (folder / name).open("wb") as file:
            total += _write_safetensors(file, shapes, data, dtype)
            file.flush()
            os.fsync(file.fileno())
    if len(files) > 1:
        weight_map = {t: name for name, shapes in zip(names, files, strict=True) for t in shapes}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(folder / "model.safetensors.index.json", index)


def _write_safetensors(
    file: BinaryIO, shapes: Mapping[str, tuple[int, ...]], data: Iterator[np.ndarray], dtype: str
) -> int:
    """Writes one file tensor by tensor (the library wants all of them in memory at once).

    The format: length of the header as 8 bytes, the header as JSON, then the data; see
    https://github.com/huggingface/safetensors#format.

    Returns:
      Bytes of data.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * jnp.dtype(dtype).itemsize
        entry = {"dtype": _TO_FILE_DTYPE[dtype], "shape": shape, "data_offsets": [start, end]}
        header[name] = entry
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # so that the data is aligned
    file.write(len(head).to_bytes(8, "little"))
    file.write(head)
    for _ in shapes:
        file.write(next(data).tobytes())
    return end


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _put_in_place(partial: Path, folder: Path) -> None:
    if not folder.exists():
        partial.rename(folder)
        return
    check_export_folder(folder)  # again: writing has taken a while
    replaced = folder.with_name(f".{folder.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    folder.rename(replaced)
    partial.rename(folder)
    shutil.rmtree(replaced)
