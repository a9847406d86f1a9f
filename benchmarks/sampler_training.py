"""Setting 4 of the sampler's benchmark: rollout phases of a real RL stage, and the same ones alone.

The stage is run by `train.run`, updates and all; only its verifiers are replaced, by one that
judges at once. Every phase, from the new weights to the freed cache, is recorded; then an engine
outside of training is given the same requests in the same order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.machine import load_average
from benchmarks.rl_run import rl_run
from benchmarks.rollout_and_update import QUESTIONS, prompts_of
from benchmarks.sampler_limits import Cached, weights_limit
from benchmarks.sampler_runs import Loaded, drain, line, on_chip, weight_sync
from jaxrl_vr.config import parse
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.train import context as train_context
from jaxrl_vr.train import run as train_run
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.types import Example, Request, Score

# Decode steps in a timing of their products.
_LIMIT_STEPS = 16


@dataclasses.dataclass(frozen=True)
class Training:
    """Groups of a step, with the model's own stop ids."""

    prompts: int = 8
    samples: int = 8
    new: int = 64


@dataclasses.dataclass(frozen=True)
class Phase:
    """One rollout phase."""

    requests: tuple[Request, ...]
    steps: int  # of decoding, on the device
    tokens: int
    seconds: float


class Recorded(SlotEngine):
    """Notes its phases, from `set_params` to the `free` behind it."""

    phases: list[Phase]
    _began = 0.0
    _before = 0, 0
    _asked: tuple[Request, ...] = ()

    def set_params(self, params: Any, version: int) -> None:
        """A phase begins."""
        self._began = time.perf_counter()
        self._before = self.counters.decode_steps, self.counters.sampled_tokens
        super().set_params(params, version)

    def submit(self, requests: Iterable[Request]) -> None:
        """Remembers them."""
        self._asked = tuple(requests)
        super().submit(self._asked)

    def free(self, with_weights: bool = False) -> None:
        """A phase ends, if anything was decoded in it."""
        super().free(with_weights)
        seconds = time.perf_counter() - self._began
        now = self.counters.decode_steps, self.counters.sampled_tokens
        steps, tokens = (n - b for n, b in zip(now, self._before, strict=True))
        if steps:
            self.phases.append(Phase(self._asked, steps, tokens, seconds))
            self._before = now


class NoVerifier:
    """In the place of the verifiers' pool: every other answer is right, at once."""

    def __init__(self, config: Any):
        self.pending = 0
        self._scores: list[tuple[int, Score]] = []

    def __enter__(self) -> NoVerifier:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def check(self, specs: Any, *, waiting: Any = None) -> None:
        """There is nothing to load."""

    def submit(self, job: int, example: Example, response: str) -> None:
        """Judges by the number of the job."""
        self.pending += 1
        is_right = job % 2 == 0
        self._scores.append((job, Score(float(is_right), "right" if is_right else "wrong")))

    def poll(self, timeout: float = 0.0) -> list[tuple[int, Score]]:
        """All that was submitted."""
        done, self._scores = self._scores, []
        self.pending -= len(done)
        return done

    def metrics(self) -> dict[str, Any]:
        """None."""
        return {}


def config_of(loaded: Loaded, setting: Training, steps: int, folder: Path) -> RunConfig:
    """A run of one RL stage on the benchmark's questions, in a folder."""
    count = setting.prompts * steps
    texts = [f"{i + 1}. {QUESTIONS[i % len(QUESTIONS)]}" for i in range(count)]
    records = folder / "questions.jsonl"
    lines = (json.dumps({"prompt": text, "reference": "0"}) + "\n" for text in texts)
    records.write_text("".join(lines), encoding="utf-8")
    # A number before the question takes a few tokens more than those that are counted here.
    longest = 16 + max(map(len, prompts_of(loaded.tokenizer, len(QUESTIONS))))
    model = loaded.model
    wanted = rl_run(
        folder,
        model={
            "path": str(loaded.folder),
            "dtype": model.dtype,
            "max_length": min(model.max_length, longest + setting.new),
        },
        slots=setting.prompts * setting.samples,
        data={
            "path": str(records),
            "fields": {"prompt": "prompt", "reference": "reference"},
            "template": {"type": "chat" if loaded.tokenizer.has_chat_template else "plain"},
            "verifier": {"type": "exact"},
        },
        stage={
            "steps": steps,
            "prompts": setting.prompts,
            "samples": setting.samples,
            "max_prompt_tokens": longest,
            "sampling": {"max_new_tokens": setting.new},
        },
    )
    return parse(RunConfig, wanted)


def recording(phases: list[Phase]) -> type[Recorded]:
    """An engine that notes its phases in a list."""
    return type("RecordedEngine", (Recorded,), {"phases": phases})


def in_training(loaded: Loaded, config: RunConfig) -> list[Phase]:
    """The rollout phases of a run."""
    phases: list[Phase] = []
    with (
        mock.patch.object(train_context, "SlotEngine", recording(phases)),
        mock.patch.object(train_run, "Pool", NoVerifier),
        mock.patch.object(train_run, "make_mesh", lambda config: loaded.mesh),
        contextlib.redirect_stdout(sys.stderr),  # stdout is for the lines
    ):
        train_run.run(config)
    return phases


def alone(loaded: Loaded, config: RunConfig, phases: list[Phase]) -> tuple[SlotEngine, list[Phase]]:
    """The same phases without training, and the engine."""
    found: list[Phase] = []
    engine = recording(found)(loaded.model, loaded.params, config.engine, loaded.mesh)
    for version, phase in enumerate(phases):
        engine.set_params(loaded.params, version)
        drain(engine, phase.requests)
        engine.free()
    return engine, found


def training(
    loaded: Loaded, setting: Training, repeats: int, pythons: Mapping[str, str]
) -> dict[str, Any]:
    """Setting 4: device steps a second in training over those alone; peers have no part in it."""
    load_before = load_average()
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(loaded, setting, repeats + 2, Path(folder))
        trained = in_training(loaded, config)
        engine, by_itself = alone(loaded, config, trained)
    slots, arch = config.engine.slots, loaded.model.arch
    # The first compiles and the second is discarded, as in the other settings.
    timed, timed_alone = trained[2:], by_itself[2:]
    limit = weights_limit(arch, slots, _LIMIT_STEPS, loaded.model.dtype)
    step_s = [limit(number) / _LIMIT_STEPS for number in range(len(timed) + 2)][2:]
    tokens = round(statistics.fmean(phase.tokens for phase in timed))
    # Of the same tokens each, so that phases whose answers end sooner do not look faster.
    seconds = [phase.seconds * tokens / phase.tokens for phase in timed]
    limits = [p.steps * s * tokens / p.tokens for p, s in zip(timed, step_s, strict=True)]
    ratio = steps_per_s(timed) / steps_per_s(timed_alone)
    prompts = [request.prompt_ids for phase in timed for request in phase.requests]
    cached = Cached(setting.prompts, round(statistics.fmean(map(len, prompts))), setting.new / 2)
    return {
        **line(loaded, 4, setting, tokens, {"ours": seconds, "limit": limits}, prompts),
        "steps_per_s": steps_per_s(timed),
        "alone_steps_per_s": steps_per_s(timed_alone),
        "phases": [[p.steps, p.seconds] for p in timed],
        "alone_phases": [[p.steps, p.seconds] for p in timed_alone],
        "ratio_to_alone": ratio,
        "targets": {"ratio_to_alone": {"at_least": 0.85, "met": ratio >= 0.85}},
        "num_compiled": engine.num_compiled,
        **on_chip(loaded, slots, cached, tokens, seconds),
        "weight_sync_s": weight_sync(engine, loaded.params),
        "load_average": load_before,
    }


def steps_per_s(phases: list[Phase]) -> float:
    """The median over phases."""
    return statistics.median(phase.steps / phase.seconds for phase in phases)
