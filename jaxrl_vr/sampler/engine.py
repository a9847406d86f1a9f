"""The engine: requests in, rollouts out, `num_steps` decode steps at a time.

It has static slots that are refilled between chunks of decode steps, one prefill a prompt, shared
by its samples, and a paged cache. The host looks at a chunk's tokens while the next one runs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.profiler import TraceAnnotation, annotate_function

from jaxrl_vr.models.paged import DecodePlan
from jaxrl_vr.models.params import Params
from jaxrl_vr.models.transformer import Model
from jaxrl_vr.sampler import decode
from jaxrl_vr.sampler.chunks import Chunk, next_chunk
from jaxrl_vr.sampler.endings import Decode, Endings
from jaxrl_vr.sampler.occupancy import Occupancy
from jaxrl_vr.sampler.plans import admission, decode_plan, extend_plan
from jaxrl_vr.sampler.programs import Programs, State, ViewProgram
from jaxrl_vr.sampler.residents import Own, Residents, shared_prompts
from jaxrl_vr.sampler.scheduler import Live, Scheduler
from jaxrl_vr.sampler.sizes import (
    EngineConfig,
    cache_sizes,
    check_memory,
    empty_parts,
    most_pages,
)
from jaxrl_vr.types import Finish, Request, Rollout

# Prefilled tokens of a part, padding counted, between two chunks of decode steps: what decodes goes
# on while a few prompts are long.
_PREFILL_BUDGET = 2048


@dataclasses.dataclass
class Counters:
    """What the engine did, for metrics and tests."""

    prefilled_prompts: int = 0
    prefilled_tokens: int = 0
    decode_steps: int = 0
    sampled_tokens: int = 0


@dataclasses.dataclass
class _Flight:
    """A chunk of decode steps that the devices work on."""

    emitted: decode.Emitted
    rows: list[tuple[int, int, Live]]  # row, slot, what runs in it


class SlotEngine:
    """An `Engine` on one host's devices.

    Args:
      model: what to sample from.
      params: its parameters in the learner's layout and sharding.
      config: sizes.
      mesh: devices; slots are spread over `data`, `fsdp` and `context`, heads over `tensor`.
      version: of the parameters, noted with each token.
      decode: token ids -> text, for stop strings and forced tokens.
    """

    def __init__(
        self,
        model: Model,
        params: Params,
        config: EngineConfig,
        mesh: jax.sharding.Mesh,
        version: int = 0,
        decode: Decode | None = None,
    ):
        self.counters = Counters()
        self.occupancy = Occupancy()
        self._model, self._config, self._mesh = model, config, mesh
        self._context = model.max_length
        self._num_steps = config.steps_per_call
        self._num_slots = config.slots
        check_memory(model, config, mesh)
        self._to_view = ViewProgram(model, mesh, config.weights == "int8")
        self._set_sizes(())
        self._endings = Endings(decode, model.vocab_size)
        self._scheduler = Scheduler(
            config.slots, model.vocab_size, model.max_length, self._check_fits
        )
        self._done: list[Rollout] = []
        self._has_new = False  # requests for which the cache may be too small
        self._released: set[int] = set()  # slots the device still takes for live
        self._decoding: set[int] = set()  # slots that are admitted on the device
        self._state: State | Any = None  # made when something is to be sampled
        self._flight: _Flight | None = None
        self._view: Any = None
        self.set_params(params, version)

    @property
    def num_unfinished(self) -> int:
        """Requests that `step` has not returned yet."""
        return self._scheduler.num_unfinished + len(self._done)

    @property
    def num_sampled(self) -> int:
        """Tokens sampled so far, in all."""
        return self.counters.sampled_tokens

    @property
    def num_compiled(self) -> int:
        """Programs compiled so far."""
        return self._to_view.num_compiled + self._programs.num_compiled

    def submit(self, requests: Iterable[Request]) -> None:
        """Takes requests; they are served in order.

        Raises:
          ValueError: an empty or too long prompt, limits that cannot be met, ids outside the
            vocabulary, too many stop ids, more tokens than the cache holds, or an id that is
            already in progress.
        """
        self._scheduler.submit(self._endings.taken(requests, self._version))
        self._has_new = True

    def abort(self, ids: Sequence[int]) -> None:
        """Ends requests at once; `step` returns what they have, with finish "aborted"."""
        rollouts, slots = self._scheduler.abort(ids)
        self._done.extend(rollouts)
        for slot in slots:
            self._vacate(slot)

    def set_params(self, params: Params, version: int) -> None:
        """New weights. Requests in progress keep their tokens and are prefilled again."""
        self._view = None  # or the device would hold two views for a moment
        self._view = self._to_view(params)
        self._version = version
        self._restart()

    def step(self) -> list[Rollout]:
        """Waits for the decode steps in flight, launches the next, returns what is done.

        The devices decode on while the caller works with what it got.

        Raises:
          FloatingPointError: the model's logits are not finite; names the request and position.
        """
        done, self._done = self._done, []
        if self._flight is None:
            self._launch()
        if self._flight is not None:
            done += self._land(self._flight)
        if self._scheduler.num_unfinished:
            self._launch()
        return done

    def free(self, with_weights: bool = False) -> None:
        """Gives the cache's memory back until the next request; what is cached is forgotten.

        Args:
          with_weights: the weights' memory too, until `set_params`.
        """
        self._restart()
        self._state = None
        if with_weights:
            self._view = None

    def _land(self, flight: _Flight) -> list[Rollout]:
        """Takes over what a chunk emitted; requests that left their slot meanwhile get none."""
        self._flight = None
        with self.occupancy.fetching(), TraceAnnotation("wait for device"):
            emitted = jax.device_get(flight.emitted)
        self.counters.decode_steps += int(emitted.count.max())
        done = []
        for row, slot, live in flight.rows:
            if self._scheduler.live.get(slot) is not live:
                continue
            searched = len(live.token_ids)
            self._record(row, live, emitted)
            end = self._endings.stop(live, searched)
            if end is not None:
                live.cut(end)
            self.counters.sampled_tokens += len(live.token_ids) - searched
            is_stopped = end is not None or emitted.is_stopped[row]
            reason: Finish = "stop" if is_stopped else "length"
            if is_stopped or len(live.token_ids) == live.request.sampling.max_new_tokens:
                done.append(self._scheduler.finish(slot, reason))
                self._vacate(slot, is_live=bool(emitted.is_live[row]))
            elif not emitted.is_live[row]:
                self._force(slot, live)
        return done

    def _force(self, slot: int, live: Live) -> None:
        """Puts forced tokens behind a completion that paused for them, to be prefilled."""
        count = self._endings.force(live, self._version)
        own = self._own(slot)
        own.ids = (*live.request.prompt_ids, *live.token_ids)[own.base :]
        # Where nothing is forced, its last token runs again: its hidden state is kept no longer.
        own.cached = len(own.ids) - max(1, count)
        self._decoding.discard(slot)

    def _record(self, row: int, live: Live, emitted: decode.Emitted) -> None:
        count = int(emitted.count[row])
        logp = emitted.logp[row, :count]
        if not np.isfinite(logp).all():
            where = len(live.token_ids) + int(np.argmin(np.isfinite(logp)))
            self._restart()
            self._state = None  # what is not finite stays nowhere
            raise FloatingPointError(
                f"request {live.request.id}: logits are not finite at completion token {where}; "
                "the weights hold NaN or inf, or the compute dtype overflows"
            )
        tokens, mass = emitted.token[row, :count].tolist(), emitted.kept_mass[row, :count].tolist()
        entropy = None if emitted.entropy is None else emitted.entropy[row, :count].tolist()
        live.extend(tokens, logp.tolist(), mass, "sampled", self._version, entropy)

    @functools.partial(annotate_function, name="plan and launch")
    def _launch(self) -> None:
        """Fills slots, prefills, and starts a chunk of decode steps without waiting for it."""
        if self._view is None:
            raise RuntimeError("step: the engine's weights were freed; call set_params first")
        self._resize()
        self._grow()
        self._place()
        if self._state is None and self._scheduler.live:
            self._state = self._programs.empty(self._view)
            self._released.clear()
        self._prefill()
        self._release()
        self._admit()
        if self._decoding:
            self._fly()

    def _resize(self) -> None:
        """Makes the cache larger for new requests, unless the config says how large it is.

        Sizes are few, so that programs are. A cache that is too small only makes requests wait, so
        while some are decoded only one that could never be served changes it.
        """
        if not self._has_new or self._config.cache_tokens:
            return
        self._has_new = False
        C, have = self._sizes.page_tokens, len(self._parts[0].pool.slot)
        waiting = list(self._scheduler.pending)
        is_needed = any(most_pages(C, request) > have for request in waiting)
        if is_needed or not self._scheduler.live:
            requests = [*waiting, *(live.request for live in self._scheduler.live.values())]
            wanted = cache_sizes(self._model, self._config, self._mesh, requests)
            if wanted.pages > self._sizes.pages:
                self.free()
                self._set_sizes(requests)

    def _grow(self) -> None:
        """Pages for the coming tokens; the youngest of a full part waits until others are done."""
        for slot, live in list(self._scheduler.live.items()):
            part, local = self._parts_of(slot)
            while self._scheduler.live.get(slot) is live:
                if part.grow(local, live.position + self._ahead(live)):
                    break
                youngest = [s for s in self._scheduler.live if self._parts_of(s)[0] is part][-1]
                self._scheduler.pause(youngest)
                self._vacate(youngest)

    def _place(self) -> None:
        waiting = shared_prompts(self._scheduler.pending)

        def place(request: Request, free: Sequence[int]) -> int | None:
            ids = request.prompt_ids
            ahead = self._ahead_of(request)

            # A part that has the prompt, then the one with the most room.
            def rank(slot: int) -> tuple[bool, int, int]:
                part, _ = self._parts_of(slot)
                return ids in part.prompts, part.pool.num_free, -slot

            for slot in sorted(free, key=rank, reverse=True):
                part, local = self._parts_of(slot)
                is_shared = ids in part.prompts or waiting[ids] > 1
                if part.can_hold(request, ahead, is_shared):
                    part.add(local, request, ahead, is_shared)
                    return slot
            return None

        self._scheduler.admit(place)
        for part in self._parts:
            part.forget(shared_prompts(self._scheduler.pending))

    def _prefill(self) -> None:
        """Runs prefill programs: few while others decode, else until something can be decoded."""
        budget = self._prefill_budget() if self._decoding else math.inf
        while budget > 0 and (chunks := self._next_chunks()):
            width = chunks[0].width
            rows = max(1, self._sizes.prefill_tokens // width)
            used = Counter[int]()
            taken = []
            for chunk in chunks:
                if chunk.width == width and used[chunk.part] < rows:
                    used[chunk.part] += 1
                    taken.append(chunk)
            sizes = self._sizes
            arrays = extend_plan(
                taken, self._parts, rows, width, self._context, sizes.kept, sizes.chunk_attention
            )
            self._state = self._programs.extend(self._view, self._state, *arrays)
            self.occupancy.handed_over()
            for chunk in taken:
                chunk.text.cached += chunk.count
                self.counters.prefilled_tokens += chunk.count
                self.counters.prefilled_prompts += chunk.is_last
            budget -= width * rows
            if not self._decoding and self._ready():
                budget = min(budget, self._prefill_budget())

    def _prefill_budget(self) -> int:
        """A step with few slots costs about what one with all does. So where more slots wait for
        their texts than decode, as when a batch begins, each that waits adds to the budget."""
        waiting = Counter(
            slot // self._part_slots
            for slot in self._scheduler.live
            if slot not in self._decoding and self._own(slot).missing is not None
        )
        if waiting.total() <= len(self._decoding):
            return _PREFILL_BUDGET
        return _PREFILL_BUDGET * max(waiting.values())

    def _next_chunks(self) -> list[Chunk]:
        """The next chunk of each text that is not cached yet, in the order of their requests."""
        chunks: dict[int, Chunk] = {}
        for slot in self._scheduler.live:
            if slot in self._decoding:
                continue
            text = self._own(slot).missing
            if text is not None and id(text) not in chunks:
                part = slot // self._part_slots
                chunks[id(text)] = next_chunk(part, text, self._sizes.run_tokens)
        return list(chunks.values())

    def _ready(self) -> list[int]:
        """Slots that are prefilled and not decoded yet."""
        return [
            slot
            for slot in self._scheduler.live
            if slot not in self._decoding and self._own(slot).missing is None
        ]

    def _release(self) -> None:
        if self._released and self._state is not None:
            keep = np.ones(self._num_slots, bool)
            keep[list(self._released)] = False
            self._state = self._programs.release(self._state, keep)
        self._released.clear()

    def _admit(self) -> None:
        ready = self._ready()
        if ready:
            lives = [self._scheduler.live[slot] for slot in ready]
            kept = [self._kept(slot) for slot in ready]
            limits = [self._endings.limit(live) for live in lives]
            new = admission(ready, lives, kept, limits, self._num_slots)
            self._state = self._programs.admit(self._state, new)
            self._decoding.update(ready)

    def _fly(self) -> None:
        flown, *arguments = self._decode_arguments()
        self._state, emitted = self._programs.decode(self._view, self._state, *arguments)
        self.occupancy.handed_over()
        self._flight = _Flight(emitted, flown)

    def _decode_arguments(self) -> tuple[list[tuple[int, int, Live]], Any, DecodePlan, Any]:
        """What a decode program is told: which slots, where their pages are, when to end."""
        rows: list[list[int]] = [[] for _ in self._parts]
        for slot in sorted(self._decoding):
            rows[slot // self._part_slots].append(slot % self._part_slots)
        num_rows = self._num_rows(max(map(len, rows)))
        positions, flown = {}, []
        of_device = np.full((self._num_parts, num_rows), self._num_slots, np.int32)
        for d, of_part in enumerate(rows):
            for r, local in enumerate(of_part):
                slot = d * self._part_slots + local
                live = self._scheduler.live[slot]
                positions[d, local] = live.position
                of_device[d, r] = slot
                flown.append((d * num_rows + r, slot, live))
        plan = decode_plan(
            *(self._parts, rows, positions, num_rows, self._num_steps, self._context),
            self._sizes.item_pages,
        )
        # Slots are worth a refill only while something waits for one.
        enough = max(1, self._num_slots // 16) if self._scheduler.pending else self._num_slots
        return flown, of_device.reshape(-1), plan, np.int32(enough)

    def _num_rows(self, live: int) -> int:
        """Rows of a part's decode program, of few: fewer live slots do not pay for all."""
        S = self._part_slots
        return next(n for n in (-(-S // 4), -(-S // 2), S) if n >= live)

    def _kept(self, slot: int) -> int:
        """Which of all parts' kept hidden states a slot begins with."""
        return slot // self._part_slots * self._sizes.kept + self._own(slot).first_row

    def _ahead(self, live: Live) -> int:
        return min(self._num_steps, live.request.sampling.max_new_tokens - len(live.token_ids))

    def _ahead_of(self, request: Request) -> int:
        left = request.sampling.max_new_tokens - len(request.prefix.token_ids)
        return min(self._num_steps, left)

    def _parts_of(self, slot: int) -> tuple[Residents, int]:
        """The part of the cache a slot is in, and its number there."""
        return self._parts[slot // self._part_slots], slot % self._part_slots

    def _own(self, slot: int) -> Own:
        """What a slot has in the cache."""
        part, local = self._parts_of(slot)
        return part.of_slot[local]

    def _vacate(self, slot: int, is_live: bool = True) -> None:
        """Frees what a slot has; `is_live`: the device still takes it for live."""
        part, local = self._parts_of(slot)
        part.remove(local)
        self._decoding.discard(slot)
        if is_live:
            self._released.add(slot)

    def _restart(self) -> None:
        """Everything in progress waits to be prefilled; what is cached or in flight is dropped."""
        self.occupancy.ended()
        self._released.update(self._decoding)
        self._decoding.clear()
        self._scheduler.pause_all()
        self._flight = None
        self._parts = empty_parts(self._sizes)

    def _set_sizes(self, requests: Sequence[Request]) -> None:
        self._sizes = cache_sizes(self._model, self._config, self._mesh, requests)
        self._num_parts = self._sizes.parts
        self._part_slots = self._num_slots // self._num_parts
        self._programs = Programs(self._model, self._sizes, self._mesh)
        self._parts = empty_parts(self._sizes)

    def _check_fits(self, request: Request) -> None:
        C, have = self._sizes.page_tokens, len(self._parts[0].pool.slot)
        need = most_pages(C, request)
        if self._config.cache_tokens and need > have:
            raise ValueError(
                f"request {request.id}: prompt of {len(request.prompt_ids)} tokens + "
                f"max_new_tokens = {request.sampling.max_new_tokens} need {need * C} tokens of "
                f"cache where there are {have * C}; raise engine.cache_tokens from "
                f"{self._config.cache_tokens} to {need * C * self._num_parts}"
            )
