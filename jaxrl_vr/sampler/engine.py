"""The engine: requests in, rollouts out, `num_steps` decode steps at a time.

`submit`, `step`, `abort` and `set_params` are the contract every engine keeps; `generate` and all
that collects rollouts is written over it. This one has static slots that are refilled between
chunks of decode steps, and one prefill a prompt, shared by its samples.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from pydantic import Field

from jaxrl_vr.config import Config
from jaxrl_vr.models.params import Params
from jaxrl_vr.models.params import shardings as param_shardings
from jaxrl_vr.models.transformer import Cache, Model
from jaxrl_vr.sampler import decode
from jaxrl_vr.sampler.scheduler import MAX_STOP_IDS, Live, Scheduler
from jaxrl_vr.sampler.token import SamplingValues
from jaxrl_vr.sharding import SAMPLE_RULES, sharding_of
from jaxrl_vr.types import Finish, Request, Rollout, TokenSource

# Prompt tokens of one prefill program: few rows of long prompts or many of short ones.
_PREFILL_TOKENS = 2048
_MIN_LENGTH = 64
_SAMPLED: list[TokenSource] = ["sampled"]


class Engine(Protocol):
    """What samples completions."""

    def submit(self, requests: Iterable[Request]) -> None:
        """Takes requests; they are served in order."""
        ...

    def step(self) -> list[Rollout]:
        """Decodes a bounded number of steps; returns what finished or was aborted since."""
        ...

    def abort(self, ids: Sequence[int]) -> None:
        """Ends requests; `step` returns what they have, with finish "aborted"."""
        ...

    def set_params(self, params: Any, version: int) -> None:
        """New weights; what is in progress goes on under them."""
        ...

    @property
    def num_unfinished(self) -> int:
        """Requests that `step` has not returned yet."""
        ...


class EngineConfig(Config):
    """Sizes of the sampler; none changes what is sampled."""

    slots: int = Field(default=64, ge=1)
    """Completions decoded side by side. More is faster until memory or products are the limit."""
    steps_per_call: int = Field(default=16, ge=1)
    """Decode steps between two looks of the host: fewer refill sooner, more cost less overhead."""


@dataclasses.dataclass
class Counters:
    """What the engine did, for metrics and tests."""

    prefilled_prompts: int = 0
    prefilled_tokens: int = 0
    decode_steps: int = 0
    sampled_tokens: int = 0


@dataclasses.dataclass
class _Prefilled:
    """The result of one prefill program, kept while a request still waits for one of its rows."""

    cache: Cache
    hidden: jax.Array
    rows: dict[tuple[int, ...], int]


class SlotEngine:
    """An `Engine` on one host's devices.

    Args:
      model: what to sample from.
      params: its parameters in the learner's layout and sharding.
      config: sizes.
      mesh: devices; slots are spread over `data` and `fsdp`, heads over `tensor`.
      version: of the parameters, noted with each token.
    """

    def __init__(
        self,
        model: Model,
        params: Params,
        config: EngineConfig,
        mesh: jax.sharding.Mesh,
        version: int = 0,
    ):
        self.counters = Counters()
        self._model = model
        self._mesh = mesh
        self._num_slots = config.slots
        self._num_steps = config.steps_per_call
        self._scheduler = Scheduler(config.slots, model.vocab_size, model.max_length)
        self._done: list[Rollout] = []
        self._prefilled: list[_Prefilled] = []
        self._slots: decode.Slots | None = None
        self._length = 0
        self._view: Any = None
        self._to_view = jax.jit(self._view_of)
        self._prefill = jax.jit(model.prefill)
        self._admit = jax.jit(self._sharded(decode.admit), donate_argnums=0)
        self._release = jax.jit(self._sharded(decode.release), donate_argnums=0)
        self._resize = jax.jit(self._sharded(decode.resize), static_argnums=1)
        self._decode = jax.jit(self._decode_chunk, donate_argnums=1)
        self._empty = jax.jit(self._sharded(self._empty_slots), static_argnums=0)
        self.set_params(params, version)

    @property
    def num_unfinished(self) -> int:
        """Requests that `step` has not returned yet."""
        return self._scheduler.num_unfinished + len(self._done)

    def submit(self, requests: Iterable[Request]) -> None:
        """Takes requests; they are served in order.

        Raises:
          ValueError: an empty or too long prompt, limits that cannot be met, ids outside the
            vocabulary, too many stop ids, or an id that is already in progress.
        """
        self._scheduler.submit(requests)

    def abort(self, ids: Sequence[int]) -> None:
        """Ends requests at once; `step` returns what they have, with finish "aborted"."""
        rollouts, slots = self._scheduler.abort(ids)
        self._done.extend(rollouts)
        if slots and self._slots is not None:
            keep = np.ones(self._num_slots, bool)
            keep[slots] = False
            self._slots = self._release(self._slots, keep)

    def set_params(self, params: Params, version: int) -> None:
        """New weights. Requests in progress keep their tokens and are prefilled again."""
        self._view = None  # or the device would hold two views for a moment
        self._view = self._to_view(params)
        self._version = version
        self._prefilled.clear()
        if self._scheduler.live:
            self._scheduler.pause_all()
            assert self._slots is not None, "live requests have slots"
            self._slots = self._release(self._slots, np.zeros(self._num_slots, bool))

    def step(self) -> list[Rollout]:
        """Fills free slots, decodes at most `steps_per_call` steps, returns what is done.

        Raises:
          FloatingPointError: the model's logits are not finite; names the request and position.
        """
        done, self._done = self._done, []
        self._fill()
        if not self._scheduler.live:
            self._slots = None
            return done
        self._fit(max(live.position for live in self._scheduler.live.values()) + self._num_steps)
        self._slots, chunk = self._decode(self._view, self._slots)
        chunk = jax.device_get(chunk)
        self.counters.decode_steps += int(chunk.count.max())
        self.counters.sampled_tokens += int(chunk.count.sum())
        for slot in sorted(self._scheduler.live):
            self._record(slot, self._scheduler.live[slot], chunk)
            if not chunk.is_live[slot]:
                reason: Finish = "stop" if chunk.is_stopped[slot] else "length"
                done.append(self._scheduler.finish(slot, reason))
        if not self._scheduler.num_unfinished:
            self._slots = None  # the learner may want the memory, and the next wave a short cache
        return done

    def _record(self, slot: int, live: Live, chunk: decode.Chunk) -> None:
        count = int(chunk.count[slot])
        logp = chunk.logp[slot, :count]
        if not np.isfinite(logp).all():
            where = len(live.token_ids) + int(np.argmin(np.isfinite(logp)))
            raise FloatingPointError(
                f"request {live.request.id}: logits are not finite at completion token {where}; "
                "the weights hold NaN or inf, or the compute dtype overflows"
            )
        live.token_ids += chunk.token[slot, :count].tolist()
        live.logp += logp.tolist()
        live.kept_mass += chunk.kept_mass[slot, :count].tolist()
        live.source += _SAMPLED * count
        live.version += [self._version] * count

    def _fill(self) -> None:
        admitted = self._scheduler.admit()
        waiting = {_prefix(r) for r in self._scheduler.pending}
        while admitted:
            have = {p for block in self._prefilled for p in block.rows}
            missing = dict.fromkeys(p for _, r in admitted if (p := _prefix(r)) not in have)
            if missing:
                self._prefilled.append(self._run_prefill(list(missing)))
            block = next(b for b in self._prefilled if _prefix(admitted[0][1]) in b.rows)
            mine = [(s, r) for s, r in admitted if _prefix(r) in block.rows]
            admitted = [(s, r) for s, r in admitted if _prefix(r) not in block.rows]
            self._fit(block.cache.k[0].shape[2])
            self._slots = self._admit(
                self._slots, block.cache, block.hidden, self._admission(mine, block.rows)
            )
            if not admitted:
                break
        self._prefilled = [b for b in self._prefilled if not waiting.isdisjoint(b.rows)]

    def _run_prefill(self, prefixes: list[tuple[int, ...]]) -> _Prefilled:
        """Prefills the first of `prefixes`, as many as fit one program of their length."""
        length = self._bucket(max(len(p) for p in prefixes))
        num_rows = min(self._num_slots, max(1, _PREFILL_TOKENS // length))
        # Two sizes of each length: few prompts do not pay for rows they leave empty.
        quarter = max(1, num_rows // 4)
        if len(prefixes) <= num_rows - quarter:
            num_rows = quarter
        prefixes = prefixes[:num_rows]
        tokens = np.zeros((num_rows, length), np.int32)
        lengths = np.ones(num_rows, np.int32)
        for row, prefix in enumerate(prefixes):
            tokens[row, : len(prefix)] = prefix
            lengths[row] = len(prefix)
        self.counters.prefilled_prompts += len(prefixes)
        self.counters.prefilled_tokens += sum(map(len, prefixes))
        hidden, cache = self._prefill(self._view, tokens, lengths)
        return _Prefilled(cache, hidden, {p: row for row, p in enumerate(prefixes)})

    def _admission(
        self, admitted: list[tuple[int, Request]], rows: dict[tuple[int, ...], int]
    ) -> decode.Admission:
        S = self._num_slots
        pad = S - len(admitted)
        requests = [r for _, r in admitted]

        # numpy arrays, which the jitted program takes to the devices
        def column(values: Iterable[Any], fill: Any, dtype: Any) -> Any:
            return np.array([*values, *[fill] * pad], dtype)

        stop_ids: Any = np.full((S, MAX_STOP_IDS), -1, np.int32)
        for i, request in enumerate(requests):
            stop_ids[i, : len(request.sampling.stop_ids)] = request.sampling.stop_ids
        return decode.Admission(
            slot=column((s for s, _ in admitted), S, np.int32),
            row=column((rows[_prefix(r)] for r in requests), 0, np.int32),
            words=column((r.key for r in requests), (0, 0, 0, 0), np.uint32),
            position=column((len(_prefix(r)) for r in requests), 0, np.int32),
            num_new=column((len(r.prefix.token_ids) for r in requests), 0, np.int32),
            limit=column((r.sampling.max_new_tokens for r in requests), 0, np.int32),
            values=SamplingValues(
                temperature=column((r.sampling.temperature for r in requests), 1, np.float32),
                top_k=column((r.sampling.top_k for r in requests), 0, np.int32),
                top_p=column((r.sampling.top_p for r in requests), 1, np.float32),
                min_p=column((r.sampling.min_p for r in requests), 0, np.float32),
            ),
            stop_ids=stop_ids,
        )

    def _bucket(self, length: int) -> int:
        """The length, of few, that programs are compiled for: a power of two, or the context."""
        power = 2 ** math.ceil(math.log2(max(length, _MIN_LENGTH)))
        # Room for the last chunk's steps: a slot that is done goes on writing at its last place.
        return min(power, self._model.max_length + self._num_steps)

    def _fit(self, length: int) -> None:
        """Makes the cache at least so long."""
        wanted = self._bucket(length)
        if self._slots is None:
            self._slots = self._empty(wanted)
            self._length = wanted
        elif wanted > self._length:
            self._slots = self._resize(self._slots, wanted)
            self._length = wanted

    def _empty_slots(self, length: int) -> decode.Slots:
        prompt = np.zeros((1, 1), np.int32), np.ones(1, np.int32)
        hidden, _ = jax.eval_shape(self._model.prefill, self._view, *prompt)
        return decode.empty_slots(
            self._model, self._num_slots, hidden.shape[1], length, MAX_STOP_IDS, hidden.dtype
        )

    def _view_of(self, params: Params) -> Any:
        # Gathered over the learner's fsdp axis first: the sampler's table replicates `embed`.
        declared = param_shardings(self._model.declare(), SAMPLE_RULES, self._mesh)
        params = jax.lax.with_sharding_constraint(params, declared)
        return self._model.sampler_view(params)

    def _decode_chunk(self, view: Any, slots: decode.Slots) -> tuple[decode.Slots, decode.Chunk]:
        slots, chunk = decode.decode_chunk(self._model, view, slots, self._num_steps)
        return self._constrain(slots), chunk

    def _sharded(self, function: Any) -> Any:
        """`function`, with its slots in the one sharding that all programs expect."""

        def sharded(*args: Any) -> decode.Slots:
            return self._constrain(function(*args))

        return sharded

    def _constrain(self, slots: decode.Slots) -> decode.Slots:
        def one(path: Any, a: jax.Array) -> jax.Array:
            is_cache = path[0].name == "cache"
            axes = ("slots", "kv_heads", None, "head_dim") if is_cache else ("slots", None)
            sharding = sharding_of(axes[: a.ndim], SAMPLE_RULES, self._mesh, a.shape)
            return jax.lax.with_sharding_constraint(a, sharding)

        return jax.tree_util.tree_map_with_path(one, slots)


def _prefix(request: Request) -> tuple[int, ...]:
    """The tokens a request starts from."""
    return request.prompt_ids + request.prefix.token_ids
