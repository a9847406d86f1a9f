"""How many verifier processes there are, and what one response may cost."""

from __future__ import annotations

import os

from pydantic import Field, field_validator, model_validator

from jaxrl_vr.config import Config

_MIN_MEMORY = 256 << 20  # twice what an interpreter with sympy maps
_SHARE = 0.25
DAY = 86_400.0  # longer waits overflow the timers of some systems


class PoolConfig(Config):
    """How many verifier processes there are, and what one response may cost."""

    workers: int | None = Field(default=None, ge=1, le=256)
    """Processes that score at the same time; absent: `share` of the cores. More when verifying
    lags behind sampling."""
    share: float | None = Field(default=None, gt=0, le=1)
    """Share of the cores, each for one process and at least one; absent: a quarter. The other
    cores sample and learn."""
    queue: int = Field(default=4096, ge=1)
    """Responses that wait for a worker; `submit` waits while there are as many. Less where
    responses are long and memory is short."""
    max_unscorable: float = Field(default=0.5, ge=0, le=1)
    """Share of answers that may be unscorable (by a bad reference, a faulty verifier) before
    training stops, once 100 were seen; 1 is never."""
    deadline: float = Field(default=5.0, gt=0, le=DAY)
    """Seconds of wall clock for one response, loading not counted. More for slow verifiers. One
    that runs programs keeps limits of its own and may take as long as they say."""
    load_deadline: float = Field(default=60.0, gt=0, le=DAY)
    """Seconds for a worker to import a verifier. More where its module loads a model."""
    memory: int = Field(default=2 << 30, ge=0, le=1 << 50)
    """Bytes of address space a worker may use; 0 is no limit."""
    max_chars: int = Field(default=1_000_000, ge=1)
    """Characters of a response; a longer one is wrong without being looked at."""

    @property
    def num_workers(self) -> int:
        """How many processes that makes on this machine."""
        if self.workers is not None:
            return self.workers
        return min(256, max(1, int((self.share or _SHARE) * _cores())))

    @model_validator(mode="after")
    def _share_acts(self) -> PoolConfig:
        if self.workers is not None and self.share is not None:
            raise ValueError(
                f"share is {self.share:g} and workers is {self.workers}: leave one of them out"
            )
        return self

    @field_validator("memory")
    @classmethod
    def _is_enough(cls, memory: int) -> int:
        if 0 < memory < _MIN_MEMORY:
            raise ValueError(
                f"is in bytes, and a worker needs at least {_MIN_MEMORY} (256 MiB) to start; "
                "0 is no limit"
            )
        return memory


def _cores() -> int:
    """Cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
