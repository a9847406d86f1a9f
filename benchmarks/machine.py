"""What a measurement ran on: without it, numbers cannot be compared."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

import jax

_PACKAGES = ("jaxrl-vr", "jax", "jaxlib", "numpy", "optax")


def machine() -> dict[str, Any]:
    """The machine, as far as it changes a speed."""
    device = jax.devices()[0]
    return {
        "cpu": _cpu(),
        "cores": _cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": platform.platform(),
        "backend": device.platform,
        "device": device.device_kind,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def versions() -> dict[str, str]:
    """Python and the packages whose version changes a speed; "not installed" for a bare clone."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def load_average() -> float:
    """Processes that wanted a core in the last minute: above 0 at the start, others are at work."""
    return round(os.getloadavg()[0], 2)


def peak_memory_bytes() -> int:
    """The most memory held since the process began: the device's, or on CPU the process's."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # Linux counts KiB


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # what this process may use, which containers restrict
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
