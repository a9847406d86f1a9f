"""Config files: reading one, and laying one over another."""

from __future__ import annotations

import collections
import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl_vr.config.errors import ConfigError, short
from jaxrl_vr.config.keys import are_named
from jaxrl_vr.config.toml import toml_content


def _files_in(folder: Path) -> list[Path]:
    return [place for place in folder.iterdir() if place.is_file()] if folder.is_dir() else []


def _without_toml(file: Path) -> str:
    return file.name.removesuffix(".toml")


def read(file: Path) -> dict[str, Any]:
    """What a TOML file holds, or a ConfigError that names the file and the line."""
    text = ""
    try:
        text = file.read_bytes().decode("utf-8-sig")  # editors on Windows put a mark in front
        return toml_content(text)
    except FileNotFoundError:
        folder = file.parent
        is_name = len(file.parts) == 1
        shipped = Path("configs").rglob("*.toml") if is_name else ()
        others = {_without_toml(place): place for place in (*shipped, *_files_in(folder))}
        near = difflib.get_close_matches(_without_toml(file), others, 1, cutoff=0.75)
        fix = f"did you mean {others[near[0]]}?" if near else "check the path"
        if file.suffix != ".toml" and is_name and not near:
            fix += f"; an override is written {re.split('[ :]', file.name)[0]}=value"
        raise ConfigError(f"{file}: there is no such file; {fix}") from None
    except OSError as error:
        fix = "give a TOML file"
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); {fix}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text ({error.reason}); save it as such") from error
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        lines = text.splitlines()
        at = int(found[1]) if found else len(lines)
        line = lines[at - 1].strip() if 0 < at <= len(lines) else ""
        shown = f": {short(line)}" if line else ""
        raise ConfigError(f"{file}: is not TOML: {error}{shown}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def merge(low: Any, high: Any) -> Any:
    """`high` laid over `low`, by the rules of `load`."""
    if isinstance(low, list) and isinstance(high, list) and are_named(low) and are_named(high):
        return _merge_named(low, high)
    if not (isinstance(low, dict) and isinstance(high, dict)):
        return high
    if "type" in low and "type" in high and low["type"] != high["type"]:
        return only_name(low) | high
    return low | {key: merge(low.get(key), value) for key, value in high.items()}


def _merge_named(low: list[Any], high: list[Any]) -> list[Any]:
    of_high = {item["name"]: item for item in high}
    known = {item["name"] for item in low}
    before: dict[str, list[Any]] = collections.defaultdict(list)
    new: list[Any] = []
    for item in high:
        if item["name"] in known:
            before[item["name"]], new = new, []
        else:
            new.append(merge(None, item))
    merged = []
    for item in low:
        name = item["name"]
        merged += before[name]
        merged.append(merge(item, of_high[name]) if name in of_high else item)
    return merged + new


def only_name(table: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a table that gets another type."""
    return {key: value for key, value in table.items() if key == "name"}
