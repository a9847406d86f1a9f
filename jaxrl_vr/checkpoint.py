"""Checkpoints of a run: arrays and host-side state of a step, committed together or not at all.

A step's folder is written under a temporary name and renamed when it is complete, so a kill, a full
disk or a crash leaves the steps before it as they were. Not here: what a run's state consists of
(train), and Hugging Face folders (models.hf).

PRNG keys are saved as what they are inside: raw uint32 arrays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.sharding import to_host

HOST_FORMAT = 2  # of the host state and its envelope; raise it when either changes


class CheckpointConfig(Config):
    """When the run's state is saved, and how much of it stays on disk."""

    every: int = Field(default=50, gt=0)
    """Steps between checkpoints; lower it where a machine may be taken away at any time."""
    keep: int = Field(default=2, gt=0)
    """Newest checkpoints to keep; while one is written, there is one more on disk."""
    asynchronous: bool = True
    """Write in the background while training goes on; costs a copy of the state in host memory."""


class SaveFailed(RuntimeError):
    """A checkpoint could not be written; those saved before it are whole."""


class Damaged(ValueError):
    """A checkpoint or an array store on disk has lost something; it was whole when it was made."""


class Checkpoints:
    """The checkpoints of one run in one folder, each a step.

    Reading changes nothing on disk, so another process may read while a run saves. In a run of
    several processes all of them call every method, on a folder that they share; `host` is that of
    process 0.
    """

    def __init__(self, folder: Path, *, keep: int, asynchronous: bool) -> None:
        self._folder = Path(folder).absolute()
        self._keep = keep
        self._asynchronous = asynchronous
        self._checkpointer: Any = None  # made by the first save
        self._saving: int | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def steps(self) -> list[int]:
        """The checkpoints, oldest first; each was whole when it got its name."""
        if not self._folder.is_dir():
            return []
        return sorted(
            int(path.name)
            for path in self._folder.iterdir()
            if path.name.isdecimal() and path.is_dir()
        )

    def latest(self) -> int | None:
        """The newest checkpoint."""
        return max(self.steps(), default=None)

    def save(self, step: int, arrays: Any, host: dict[str, Any]) -> None:
        """Saves a step; the newest step, saved again, is left as it is.

        Returns when the arrays may be donated or changed, which is before they are on disk where
        `asynchronous`; `wait` and the next `save` then tell whether that succeeded.

        Args:
          step: above all steps that the folder holds.
          arrays: pytree of arrays.
          host: what JSON gives back unchanged: dicts with string keys, lists, strings, numbers,
            booleans, None.

        Raises:
          SaveFailed: this checkpoint, or the one before, could not be written.
        """
        self.wait()
        latest = self.latest()
        if step == latest:
            return
        if latest is not None and step < latest:
            raise ValueError(
                f"checkpoint step {step}: {self._folder} already holds step {latest}; resume from "
                "it, or use another folder"
            )
        _check_json(host, "host")
        named = {name: _own(leaf) for name, leaf in _named(arrays).items()}
        self._saving = step
        with self._reporting_failure():
            import orbax.checkpoint as ocp

            self._folder.mkdir(parents=True, exist_ok=True)
            self._checkpointer = self._checkpointer or _checkpointer(self._asynchronous)
            self._checkpointer.save(
                self._folder / str(step),
                args=ocp.args.Composite(
                    arrays=ocp.args.StandardSave(named),
                    host=ocp.args.JsonSave({"format": HOST_FORMAT, "host": host}),
                ),
            )
        if not self._asynchronous:
            self.wait()

    def wait(self) -> None:
        """Blocks until what is being saved is on disk, and drops the checkpoints beyond `keep`."""
        if self._saving is None:
            return
        with self._reporting_failure():
            if self._asynchronous:
                self._checkpointer.wait_until_finished()
            self._tidy(self.steps()[: -self._keep])
            self._saving = None

    def close(self) -> None:
        """Waits, and ends the background threads."""
        try:
            self.wait()
        finally:
            if self._checkpointer is not None:
                self._checkpointer.close()
                self._checkpointer = None

    def restore(self, step: int, target: Any) -> Any:
        """The arrays of a step, in the shardings of `target`; the mesh may differ from the saved.

        Args:
          step: one of `steps()`.
          target: the tree that was saved, with `jax.ShapeDtypeStruct(..., sharding=...)` leaves.

        Raises:
          Damaged: the files of the step are not whole.
          ValueError: the target is not what was saved.
        """
        with self._naming_the_way_back(step):
            return _read(self._step_folder(step), target)

    def host(self, step: int) -> dict[str, Any]:
        """The host state of a step; raises `Damaged` as `restore` does."""
        file = self._step_folder(step) / "host" / "metadata"
        with self._naming_the_way_back(step), _Reading(file.parent.parent):
            held = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(held, dict) or not {"format", "host"} <= held.keys():
                raise ValueError("host/metadata holds no state")
        if held["format"] != HOST_FORMAT:
            raise ValueError(
                f"checkpoint step {step} in {self._folder} has format {held['format']}, this "
                f"version reads {HOST_FORMAT}; resume with the version that wrote it"
            )
        return held["host"]

    def _step_folder(self, step: int) -> Path:
        steps = self.steps()
        if step not in steps:
            raise ValueError(f"no checkpoint of step {step} in {self._folder}; it holds {steps}")
        return self._folder / str(step)

    @contextlib.contextmanager
    def _naming_the_way_back(self, step: int):
        """Says how a run goes on without a step that is damaged."""
        try:
            yield
        except Damaged as error:
            before = max((s for s in self.steps() if s < step), default=None)
            then = "begins anew" if before is None else f"resumes from step {before}"
            raise Damaged(
                f"{error}; put it back from a copy, or delete the folder, and the stage {then}"
            ) from error

    @contextlib.contextmanager
    def _reporting_failure(self):
        """Turns what a failing write raises into `SaveFailed`, and makes the next save possible."""
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:  # tensorstore raises all three
            step, self._saving = self._saving, None
            if self._checkpointer is not None:
                with contextlib.suppress(OSError, RuntimeError, ValueError):
                    self._checkpointer.close()
                self._checkpointer = None
            with contextlib.suppress(OSError):
                self._tidy([])
            latest = self.latest()
            kept = "there is none before it" if latest is None else f"step {latest} is whole"
            raise SaveFailed(
                f"saving step {step} in {self._folder} failed ({kept}): {_first_line(error)}; free "
                "space there or make it writable, then run the same command again"
            ) from error

    def _tidy(self, steps: list[int]) -> None:
        """Deletes these steps, and what killed or failed saves have left."""
        if jax.process_index() != 0:
            return
        for step in steps:
            # Renamed first: a kill while deleting leaves no folder that looks complete.
            (self._folder / str(step)).rename(self._folder / f"{step}.deleted")
        for leftover in (
            *self._folder.glob("*.orbax-checkpoint-tmp*"),
            *self._folder.glob("*.deleted"),
        ):
            shutil.rmtree(leftover)


def save_arrays(folder: Path, tree: Any) -> None:
    """Stores a pytree of arrays as a folder, replacing one that was stored there before.

    Raises:
      SaveFailed: it could not be written.
    """
    import orbax.checkpoint as ocp

    folder = Path(folder).absolute()
    # Process 0 alone: while others look, it may already be replacing the folder.
    if jax.process_index() == 0 and folder.exists() and not _is_store(folder):
        raise ValueError(f"{folder} exists and is no array store; move it away, or name another")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _checkpointer(asynchronous=False) as writer:
            args = ocp.args.Composite(arrays=ocp.args.StandardSave(_named(tree)))
            writer.save(folder, args=args, force=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise SaveFailed(
            f"storing arrays in {folder} failed: {_first_line(error)}; free space there or make it "
            "writable"
        ) from error


def load_arrays(folder: Path, target: Any) -> Any:
    """What `save_arrays` stored, in the shardings of `target`.

    Raises:
      Damaged: the files are not whole.
      ValueError: there is no store, or the target is not what was stored.
    """
    folder = Path(folder).absolute()
    if not (folder / "arrays").is_dir():
        raise ValueError(f"no array store at {folder}; save_arrays makes one")
    return _read(folder, target)


def parameter_hash(tree: Any) -> str:
    """sha256 of a tree's paths, shapes, dtypes and values, whatever its sharding.

    In a run of several processes all of them must call it.
    """
    digest = hashlib.sha256()
    for name, leaf in sorted(_named(tree).items()):
        array = to_host(leaf)
        digest.update(f"{name} {array.shape} {array.dtype}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _checkpointer(asynchronous: bool) -> Any:
    import orbax.checkpoint as ocp

    kind = ocp.AsyncCheckpointer if asynchronous else ocp.Checkpointer
    handlers = {"arrays": ocp.StandardCheckpointHandler(), "host": ocp.JsonCheckpointHandler()}
    return kind(ocp.CompositeCheckpointHandler(**handlers))


def _is_store(folder: Path) -> bool:
    files = ("_CHECKPOINT_METADATA", "arrays/_METADATA")
    return all((folder / name).is_file() for name in files)


def _named(tree: Any) -> dict[str, Any]:
    """Leaves by their path, such as `layers/q`: the store knows names, not tree types."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}
    assert len(named) == len(leaves), "two leaves of the tree have one path"
    return named


def _own(leaf: Any) -> Any:
    """A numpy array is copied, because it may change while it is written in the background."""
    return leaf if isinstance(leaf, jax.Array) else np.array(leaf)


def _read(folder: Path, target: Any) -> Any:
    import orbax.checkpoint as ocp

    wanted = _named(target)
    with _checkpointer(asynchronous=False) as reader:
        with _Reading(folder):
            if not _is_store(folder):
                raise ValueError("files that describe the arrays are missing")
            _check_files(folder)
            held = reader.metadata(folder).item_metadata["arrays"].tree
        _check_leaves(folder, wanted, held)
        args = ocp.args.Composite(arrays=ocp.args.StandardRestore(wanted))
        with _Reading(folder):
            found = reader.restore(folder, args=args)["arrays"]
    return jax.tree.unflatten(jax.tree.structure(target), [found[name] for name in wanted])


def _check_files(folder: Path) -> None:
    """Raises ValueError if a file of the arrays is missing or cut.

    The reader finds that too, but the reads that it then leaves in flight print their own errors.
    """
    import tensorstore

    for file in (folder / "arrays" / "array_metadatas").glob("*"):
        json.loads(file.read_text(encoding="utf-8"))
    base = {"driver": "file", "path": f"{folder / 'arrays'}/"}
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
    keys = store.list().result()
    if not keys:
        raise ValueError("the index of the arrays is missing")
    ends = [store.read(key, byte_range=slice(-1, None)) for key in keys]
    for key, end in zip(keys, ends, strict=True):
        if len(end.result().value) != 1:
            raise ValueError(f"the file that holds {key.decode()} is missing")


class _Reading:
    """While entered, turns what reading faulty files raises into `Damaged`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: object) -> None:
        # Around a chunk's error the store raises a bare Exception. That very type and no other: an
        # accelerator that is full, for one, must not lead to the advice that Damaged gives.
        if kind is Exception and error is not None:
            error = error.__cause__
        if isinstance(error, (ValueError, FileNotFoundError)):
            # Without the library's own description of the array, which is longer than a screen.
            reason = _first_line(error).partition(" [tensorstore_spec=")[0]
            raise Damaged(f"{self._folder} is damaged: {reason}") from error


def _check_leaves(folder: Path, wanted: dict[str, Any], held: dict[str, Any]) -> None:
    """Refuses a target that differs from what is stored; the reader would cast, cut or pad."""
    wrong = []
    for name in sorted({*wanted, *held}):
        asked = f"{wanted[name].dtype}{list(wanted[name].shape)}" if name in wanted else "no leaf"
        has = f"{held[name].dtype}{list(held[name].shape)}" if name in held else "no leaf"
        if asked != has:
            wrong.append(f"{name}: the checkpoint has {has}, the run asks for {asked}")
        elif wanted[name].sharding is None:
            wrong.append(f"{name}: give the target a sharding")
    if wrong:
        raise ValueError(
            f"{folder} does not fit, it was saved by another model or optimizer:\n  "
            + "\n  ".join(wrong)
        )


def _check_json(value: Any, where: str) -> None:
    """Refuses what JSON would change silently: tuples, number keys, numpy scalars."""
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise ValueError(f"{where}: the key {key!r} is no string; use str(key)")
            _check_json(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_json(item, f"{where}.{index}")
    elif value is not None and type(value) not in (str, int, float, bool):
        raise ValueError(
            f"{where}: {value!r} of type {type(value).__name__} would not come back from JSON as "
            "it is; use dict, list, str, int, float, bool or None"
        )


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
