"""An engine that is run again and again, and what the lines of all settings have in common."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks.machine import machine, peak_memory_bytes, versions
from benchmarks.sampler_limits import Cached, chip_limit, medians
from jaxrl_vr.data.tokenizer import HFTokenizer
from jaxrl_vr.models import hf
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.sampler.sizes import EngineConfig
from jaxrl_vr.sharding import TRAIN_RULES, MeshConfig, make_mesh
from jaxrl_vr.types import Request, Rollout, Sampling


class Loaded(NamedTuple):
    """A model and where it is."""

    folder: Path
    model: Transformer
    params: Any
    mesh: jax.sharding.Mesh
    tokenizer: HFTokenizer

    def engine(self, slots: int, kind: type[SlotEngine] = SlotEngine) -> SlotEngine:
        """An engine of so many slots, with all else at its default."""
        return kind(self.model, self.params, EngineConfig(slots=slots), self.mesh)


def load(folder: Path, dtype: str) -> Loaded:
    """The model on the first device; its parameters are float32, its products of `dtype`."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    arch, params = hf.load(folder, rules=TRAIN_RULES, mesh=mesh)
    return Loaded(folder, Transformer(arch, dtype=dtype), params, mesh, HFTokenizer(folder))


class Runs:
    """An engine that samples the same lengths again and again; called with the turn's number.

    Attributes:
      rollouts: of the last call, by id.
      compiled: programs after each call.
      peak_memory_bytes: after the first call; on CPU of the process, whatever it did before.
      first_call_s: seconds of the first call, in which most is compiled.
    """

    def __init__(self, engine: SlotEngine, requests: Callable[[int], list[Request]]):
        self.engine = engine
        self.rollouts: list[Rollout] = []
        self.compiled: list[int] = []
        self.peak_memory_bytes = 0
        self.first_call_s = 0.0
        self._requests = requests

    def __call__(self, number: int) -> float:
        """Seconds from the requests to the last rollout."""
        requests = self._requests(number)
        self.engine.free()  # or the prompts of the call before would still be cached
        start = time.perf_counter()
        done = drain(self.engine, requests)
        seconds = time.perf_counter() - start
        self.rollouts = sorted(done, key=lambda rollout: rollout.id)
        self.compiled.append(self.engine.num_compiled)
        if number == 0:
            self.peak_memory_bytes, self.first_call_s = peak_memory_bytes(), seconds
        return seconds

    def line(self) -> dict[str, Any]:
        """What a line says of the engine."""
        return {
            "num_compiled": self.compiled[-1],
            "compiled_while_timed": self.compiled[-1] - self.compiled[1],
            "peak_memory_bytes": self.peak_memory_bytes,
            "first_call_s": self.first_call_s,
        }


def drain(engine: SlotEngine, requests: Sequence[Request]) -> list[Rollout]:
    """Samples requests to their end."""
    engine.submit(requests)
    done: list[Rollout] = []
    while engine.num_unfinished:
        done += engine.step()
    return done


def requests_of(
    prompts: Sequence[Sequence[int]], samples: int, new: int
) -> Callable[[int], list[Request]]:
    """Requests for `samples` answers of `new` tokens to each prompt; each turn has its own keys."""

    def make(number: int) -> list[Request]:
        return [
            Request(p * samples + g, tuple(ids), (0, number, p, g), Sampling(max_new_tokens=new))
            for p, ids in enumerate(prompts)
            for g in range(samples)
        ]

    return make


def line(
    loaded: Loaded,
    number: int,
    setting: Any,
    tokens: int,
    seconds: Mapping[str, list[float]],
    prompts: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """What the line of every setting has; `seconds` hold "ours" and "limit"."""
    ours, limit = medians({name: seconds[name] for name in ("ours", "limit")})
    lengths = [len(ids) for ids in prompts]
    return {
        "benchmark": "sampler",
        "setting": number,
        "tokens": tokens,
        "tokens_per_s": tokens / ours,
        "limit_tokens_per_s": tokens / limit,
        "ratio_to_limit": limit / ours,
        "seconds": seconds["ours"],
        "limit_seconds": seconds["limit"],
        "settings": {
            "model": loaded.folder.resolve().name,
            "dtype": loaded.model.dtype,
            "prompt_lengths": [min(lengths), max(lengths)],
            **dataclasses.asdict(setting),
        },
        "machine": machine(),
        "versions": versions(),
    }


def on_chip(
    loaded: Loaded, slots: int, cached: Cached, tokens: int, seconds: list[float]
) -> dict[str, Any]:
    """On an accelerator: tokens a second of the chip, and the share of what its peaks allow."""
    device = loaded.mesh.devices.flat[0]
    if device.platform == "cpu":
        return {}
    (median,) = medians({"ours": seconds})
    found = {"tokens_per_s_per_chip": tokens / median}
    limit = chip_limit(device.device_kind, loaded.model.arch, slots, cached, loaded.model.dtype)
    if limit is None:
        return {**found, "chip_limit": f"the peaks of {device.device_kind!r} are not known here"}
    step, bound_by = limit
    at_peak = slots / step
    return {
        **found,
        "bound_by": bound_by,
        "chip_limit_tokens_per_s": at_peak,
        "ratio_to_chip_limit": tokens / median / at_peak,
    }


def weight_sync(engine: SlotEngine, params: Any) -> float:
    """Seconds until an idle engine has new weights; the median of three."""

    def once(version: int) -> float:
        start = time.perf_counter()
        engine.set_params(params, version)
        jax.block_until_ready(jax.live_arrays())
        return time.perf_counter() - start

    return sorted(once(version) for version in range(3))[1]
