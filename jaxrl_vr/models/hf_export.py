"""Writing Hugging Face folders that `transformers`, and `hf.load`, read."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.hf import file_shape, named_tensors, read_config
from jaxrl_vr.models.hf_config import CLASSES, architecture_from_config, config_of
from jaxrl_vr.models.params import Params, declare, is_param
from jaxrl_vr.sharding import to_host

FileDtype = Literal["float32", "bfloat16"]

_TO_FILE_DTYPE = {"float32": "F32", "bfloat16": "BF16"}
# In an exported config.json: the files of the export, which the next one may replace.
_EXPORTED = "exported_by_jaxrl_vr"


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
    """The tensors of `named_tensors`, one at a time, in the file's layout and dtype."""
    declared = declare(arch)
    arrays = iter(jax.tree.leaves(params))
    previous, array = None, None
    for _, p, layer in named_tensors(declared):
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
    for name, p, _ in named_tensors(declare(arch)):
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
