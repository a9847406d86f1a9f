"""The sampler's jitted programs on a mesh, and the arrays on the devices that they hand on.

Each array has one sharding in all programs, so that none is compiled twice: slots, pages and kept
hidden states are split over `data`, `fsdp` and `context`, heads over `tensor`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl_vr.arrays import pytree_dataclass
from jaxrl_vr.models.paged import DecodePlan, ExtendPlan, Pages
from jaxrl_vr.models.params import Params
from jaxrl_vr.models.params import shardings as param_shardings
from jaxrl_vr.models.transformer import Model
from jaxrl_vr.sampler import decode
from jaxrl_vr.sampler.scheduler import MAX_STOP_IDS
from jaxrl_vr.sampler.sizes import Sizes
from jaxrl_vr.sampler.token import padded_vocabulary
from jaxrl_vr.sharding import SAMPLE_RULES, entry, spec


@pytree_dataclass
class State:
    """All that the programs change."""

    slots: decode.Slots
    pages: Pages
    kept: jax.Array  # [D rows, width] hidden states of prefilled texts


class ViewProgram:
    """Makes the sampler's copy of the learner's parameters: reshards, casts, unstacks layers."""

    def __init__(self, model: Model, mesh: jax.sharding.Mesh, int8: bool):
        declared = param_shardings(model.declare(), SAMPLE_RULES, mesh)

        as_rows = mesh.devices.flat[0].platform == "tpu"
        V, parts = model.vocab_size, mesh.shape["tensor"]

        def view(params: Params) -> Any:
            # Gathered over the learner's fsdp axis first: the sampler's table replicates `embed`.
            with jax.named_scope("weight_sync"):
                params = jax.lax.with_sharding_constraint(params, declared)
                return model.sampler_view(params, int8, as_rows, padded_vocabulary(V, parts))

        self._view = jax.jit(view)

    def lower(self, params: Params) -> Any:
        """The program, lowered for shapes with shardings."""
        return self._view.lower(params)

    def __call__(self, params: Params) -> Any:
        """The copy."""
        return self._view(params)

    @property
    def num_compiled(self) -> int:
        """Programs compiled so far."""
        return _num_compiled(self._view)


class Programs:
    """Compiled when first called; the state is donated and updated in place."""

    def __init__(self, model: Model, sizes: Sizes, mesh: jax.sharding.Mesh):
        self._model = model
        self._sizes = sizes
        self._mesh = mesh
        self._empty = jax.jit(self._empty_of)
        self._extend = jax.jit(self._extend_of, donate_argnums=1)
        self._admit = jax.jit(self._admit_of, donate_argnums=0)
        self._release = jax.jit(self._release_of, donate_argnums=0)
        self._decode = jax.jit(self._decode_of, donate_argnums=1)

    def empty(self, view: Any) -> State:
        """A state that holds nothing."""
        with jax.set_mesh(self._mesh):
            return self._empty(view)

    def extend(self, view: Any, state: State, tokens: Any, plan: ExtendPlan, row: Any) -> State:
        """Prefills a chunk of several texts; see `decode.extend`."""
        with jax.set_mesh(self._mesh):
            return self._extend(view, state, tokens, plan, row)

    def admit(self, state: State, new: decode.Admission) -> State:
        """Puts prefilled requests into slots; see `decode.admit`."""
        with jax.set_mesh(self._mesh):
            return self._admit(state, new)

    def release(self, state: State, keep: Any) -> State:
        """Ends the slots where `keep` is false."""
        with jax.set_mesh(self._mesh):
            return self._release(state, keep)

    def decode(
        self, view: Any, state: State, rows: Any, plan: DecodePlan, enough: Any
    ) -> tuple[State, decode.Emitted]:
        """Decodes a chunk of steps; see `decode.decode_chunk`."""
        with jax.set_mesh(self._mesh):
            return self._decode(view, state, rows, plan, enough)

    def lower_decode(self, view: Any, rows: Any, plan: DecodePlan, enough: Any) -> Any:
        """What `decode` runs, lowered for an abstract view and state: to compile it for devices
        that are not here."""
        with jax.set_mesh(self._mesh):
            return self._decode.lower(view, self.abstract_state(view), rows, plan, enough)

    def lower_extend(self, view: Any, tokens: Any, plan: ExtendPlan, row: Any) -> Any:
        """What `extend` runs, lowered for an abstract view and state."""
        with jax.set_mesh(self._mesh):
            return self._extend.lower(view, self.abstract_state(view), tokens, plan, row)

    def abstract_state(self, view: Any) -> State:
        """Shapes and shardings of a state."""
        with jax.set_mesh(self._mesh):
            state = jax.eval_shape(self._empty_of, view)
            return jax.tree.map(
                lambda a, sharding: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding),
                state,
                self._shardings(state),
            )

    @property
    def num_compiled(self) -> int:
        """Programs compiled so far."""
        jitted = self._empty, self._extend, self._admit, self._release, self._decode
        return sum(map(_num_compiled, jitted))

    def _empty_of(self, view: Any) -> State:
        sizes, head = self._sizes, self._model.view_head(view)
        width, dtype = head.shape[1], head.dtype
        return self._placed(
            State(
                decode.empty_slots(sizes.slots, width, MAX_STOP_IDS, dtype),
                self._model.empty_pages(sizes.pages, sizes.page_tokens, sizes.keys_across),
                jnp.zeros((sizes.parts * sizes.kept, width), dtype),
            )
        )

    def _extend_of(self, view: Any, state: State, tokens: Any, plan: Any, row: Any) -> State:
        new = decode.extend(self._model, view, state.pages, state.kept, tokens, plan, row)
        return self._placed(State(state.slots, *new))

    def _admit_of(self, state: State, new: decode.Admission) -> State:
        slots = decode.admit(state.slots, state.kept, new)
        return self._placed(dataclasses.replace(state, slots=slots))

    def _release_of(self, state: State, keep: Any) -> State:
        return self._placed(dataclasses.replace(state, slots=decode.release(state.slots, keep)))

    def _decode_of(
        self, view: Any, state: State, rows: Any, plan: Any, enough: Any
    ) -> tuple[State, decode.Emitted]:
        slots, pages, emitted = decode.decode_chunk(
            self._model,
            view,
            state.slots,
            state.pages,
            rows,
            plan,
            enough,
            self._sizes.steps,
            self._sizes.entropy,
        )
        return self._placed(State(slots, pages, state.kept)), emitted

    def _placed(self, state: State) -> State:
        return jax.lax.with_sharding_constraint(state, self._shardings(state))

    def _shardings(self, state: State) -> State:
        slots = entry("slots", self._sizes.parts, SAMPLE_RULES, self._mesh)

        def of(*axes: str | None) -> Any:
            def one(a: Any) -> NamedSharding:
                heads = spec(axes, SAMPLE_RULES, self._mesh, a.shape[1 : 1 + len(axes)])
                return NamedSharding(self._mesh, PartitionSpec(slots, *heads))

            return one

        return State(
            jax.tree.map(of(), state.slots),
            jax.tree.map(of("kv_heads"), state.pages),
            of()(state.kept),
        )


def _num_compiled(jitted: Any) -> int:
    return jitted._cache_size()
