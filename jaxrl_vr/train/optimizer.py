"""The optimizers and their learning-rate schedule.

Each gives updates for a learning rate of -1; the rate is the caller's, and so is clipping. Which
parameters are treated apart is in groups.py, where the state lies in transform.py.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal

import jax
import optax
from optax import contrib
from pydantic import Discriminator, Field, PositiveInt, Tag, model_validator

from jaxrl_vr.config import Config
from jaxrl_vr.models.params import Param, is_param
from jaxrl_vr.train.factored import is_factored, scale_by_factored_rms, sizes_of
from jaxrl_vr.train.groups import Group, Treatment, treatments
from jaxrl_vr.train.transform import Transform, stored_as

_FROZEN = "frozen"
# What a bfloat16 has to change by, as a share of itself, to become another one.
_BFLOAT16_STEP = 2**-8


class Schedule(Config):
    """Learning rate over optimizer steps: linear warmup, then a shape."""

    type: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warmup: stay, or fall to `end_fraction` in a line or half a cosine."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps from 0 to the full rate."""
    total_steps: PositiveInt | None = None
    """Optimizer steps until the end of the fall; None is the stage's own length. Set it where the
    stage may be made longer later: the schedule then stays what it was."""
    end_fraction: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the full rate that is left at the end."""

    @model_validator(mode="after")
    def _check(self) -> Schedule:
        if self.type == "constant" and (self.end_fraction or self.total_steps):
            name = "end_fraction" if self.end_fraction else "total_steps"
            raise ValueError(
                f"{name} = {getattr(self, name)} cannot act with type = 'constant'; leave it out, "
                "or set type to 'linear' or 'cosine'"
            )
        if self.total_steps is not None and self.warmup_steps > self.total_steps:
            raise ValueError(
                f"warmup_steps = {self.warmup_steps} is above total_steps = {self.total_steps}, so "
                "the full rate would come after the end; lower one, or raise the other"
            )
        return self

    def __call__(self, step: int, stage_steps: int) -> float:
        """Factor on the learning rate for optimizer step `step`, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.type == "constant":
            return 1.0
        total = self.total_steps or stage_steps
        done = (step - self.warmup_steps) / max(total - self.warmup_steps, 1)
        done = min(max(done, 0.0), 1.0)
        fallen = done if self.type == "linear" else 0.5 - 0.5 * math.cos(math.pi * done)
        return 1.0 - (1.0 - self.end_fraction) * fallen


class OptimizerBase(Config):
    """What every optimizer has."""

    learning_rate: float = Field(gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decay of matrices (never of norms and biases), times the learning rate."""
    decay: tuple[str, ...] = ()
    """Globs on the paths of parameters that decay beside matrices, such as `*norm`."""
    no_decay: tuple[str, ...] = ()
    """Globs on the paths of parameters that never decay, such as `embed`."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients with a larger global norm are scaled down to it."""
    schedule: Schedule = Schedule()
    """Learning rate over time."""
    groups: tuple[Group, ...] = ()
    """Parameters with a learning rate or a decay of their own, or none: `{ match = "embed",
    frozen = true }`. Each parameter belongs to the first that matches it."""
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype in which moments are stored; weights and arithmetic stay float32. bfloat16 halves
    their memory, and wants means that forget 0.4 % a step or more, such as b2 = 0.99."""
    state_offload: bool = False
    """Keeps the moments in the host's memory between updates: less of the device's, for the time
    that they take over the bus twice an update."""

    forgets: ClassVar[tuple[str, ...]] = ()  # fields that say what share of a moment stays

    @model_validator(mode="after")
    def _check_acts(self) -> OptimizerBase:
        decays = [self.weight_decay, *(group.weight_decay or 0.0 for group in self.groups)]
        for name in ("decay", "no_decay"):
            if getattr(self, name) and not any(decays):
                raise ValueError(
                    f"{name} = {list(getattr(self, name))} cannot act with weight_decay = 0; leave "
                    "it out, or set weight_decay, to 0.1 for example"
                )
        for name in self.forgets if self.state_dtype == "bfloat16" else ():
            value = getattr(self, name)
            if value is not None and 1 - value < _BFLOAT16_STEP:
                raise ValueError(
                    f"{name} = {value} cannot act with state_dtype = 'bfloat16': the moment would "
                    f"have to fall by {1 - value:.2g} of itself, which rounds to nothing; set "
                    f"{name} = 0.99, or state_dtype = 'float32'"
                )
        return self

    def rate(self, step: int, stage_steps: int) -> float:
        """Learning rate of optimizer step `step` of a stage."""
        return self.learning_rate * self.schedule(step, stage_steps)

    def transform(self, declared: Any) -> Transform:
        """Gradients (clipped) -> updates for a learning rate of -1; the rate is the caller's.

        Args:
          declared: parameters as `Param`.

        Raises:
          ValueError: an option that cannot act on these parameters.
        """
        treated = self._treatments(declared)

        def label(param: Param, treatment: Treatment) -> str:
            return _FROZEN if treatment.is_frozen else self._rule_of(param)

        labels = jax.tree.map(label, declared, treated, is_leaf=is_param)
        used = set(jax.tree.leaves(labels))
        self._check_rules(used)

        def of_rule(name: str) -> optax.GradientTransformation:
            if name == _FROZEN:
                return optax.set_to_zero()
            own = jax.tree.map(
                lambda param, label: param if label == name else optax.MaskedNode(),
                declared,
                labels,
                is_leaf=is_param,
            )
            return self._rule(name, own)

        if len(used) == 1:
            steps = of_rule(*used)
        else:
            steps = optax.partition({name: of_rule(name) for name in sorted(used)}, labels)
        treat = optax.stateless(lambda s, p: jax.tree.map(_treated, s, p, treated))
        chained = optax.chain(steps, treat)
        frozen = jax.tree.map(lambda treatment: treatment.is_frozen, treated)
        return Transform(
            chained.init,
            chained.update,
            frozen=frozen if _FROZEN in used else None,
            is_offloaded=self.state_offload,
        )

    def _treatments(self, declared: Any) -> Any:
        return treatments(
            declared,
            groups=self.groups,
            weight_decay=self.weight_decay,
            decay=self.decay,
            no_decay=self.no_decay,
        )

    def _rule_of(self, param: Param) -> str:
        """Name of the rule for a parameter."""
        return self.__class__.__name__.lower()

    def _check_rules(self, used: Collection[str]) -> None:
        """Refuses rules with which the optimizer would be another."""

    @abc.abstractmethod
    def _rule(self, name: str, declared: Any) -> optax.GradientTransformation:
        """The rule of this name, for these parameters, without decay and factors."""

    def _stored(self, inner: optax.GradientTransformation) -> optax.GradientTransformation:
        return stored_as(inner, self.state_dtype)


class AdamW(OptimizerBase):
    """Adam with decoupled weight decay, https://arxiv.org/abs/1711.05101."""

    type: Literal["adamw"] = "adamw"
    """Which optimizer this is."""
    learning_rate: float = Field(gt=0)
    """Peak learning rate. RL on a pretrained model starts near 1e-6, on a small one near 1e-5."""
    b1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the mean of gradients."""
    b2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the mean of squared gradients; lower forgets sooner."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the mean square."""

    forgets: ClassVar[tuple[str, ...]] = ("b1", "b2")

    def _rule(self, name: str, declared: Any) -> optax.GradientTransformation:
        return self._stored(optax.scale_by_adam(b1=self.b1, b2=self.b2, eps=self.eps))


class Adafactor(OptimizerBase):
    """Adam whose mean squares are one number a row and a column, https://arxiv.org/abs/1804.04235.

    Its state is next to nothing. Means, clipping and scale are of each layer's matrix.
    """

    type: Literal["adafactor"] = "adafactor"
    """Which optimizer this is."""
    learning_rate: float = Field(gt=0)
    """Peak learning rate: a share of each parameter's root mean square, or of 1 without
    `scale_by_parameter`; 1e-3 moves a matrix by up to a thousandth of itself."""
    decay_exponent: float = Field(default=0.8, gt=0, le=1)
    """In step t = 1, 2, ... the means forget as 1 - t^-decay_exponent."""
    min_factored_size: PositiveInt = 128
    """Matrices with fewer rows or columns keep a mean square for each of their numbers."""
    eps: float = Field(default=1e-30, gt=0)
    """Added to squared gradients."""
    clip_rms: float = Field(default=1.0, gt=0)
    """Largest root mean square of a step, before the learning rate."""
    scale_by_parameter: bool = True
    """Steps are shares of the parameter's root mean square, of 0.001 at least."""
    momentum: float | None = Field(default=None, gt=0, lt=1)
    """Decay of a mean of steps, as large as the parameters; None: no mean."""

    forgets: ClassVar[tuple[str, ...]] = ("momentum",)

    @model_validator(mode="after")
    def _check_dtype(self) -> Adafactor:
        if self.momentum is None and self.state_dtype != "float32":
            raise ValueError(
                f"state_dtype = {self.state_dtype!r} cannot act without momentum: the means of "
                "rows and columns are small and stay float32; leave it out, or set momentum = 0.9"
            )
        return self

    def _rule(self, name: str, declared: Any) -> optax.GradientTransformation:
        params: list[Param] = jax.tree.leaves(declared, is_leaf=is_param)
        if not any(is_factored(param, self.min_factored_size) for param in params):
            sizes = [min(sizes_of(param)) for param in params if param.is_matrix]
            works = (
                f"set it to {max(sizes)} or less, or type = 'adamw'"
                if sizes
                else "set type = 'adamw'"
            )
            raise ValueError(
                f"min_factored_size = {self.min_factored_size} cannot act: of the matrices that "
                f"train none has so many rows and columns (at most {max(sizes, default=0)}), so "
                f"nothing would be factored; {works}"
            )
        steps = scale_by_factored_rms(
            declared,
            decay_exponent=self.decay_exponent,
            min_factored_size=self.min_factored_size,
            eps=self.eps,
            clip_rms=self.clip_rms,
            scale_by_parameter=self.scale_by_parameter,
        )
        if self.momentum is None:
            return steps
        return optax.chain(steps, self._stored(optax.ema(self.momentum, debias=False)))


class Lion(OptimizerBase):
    """The sign of a mean of gradients, https://arxiv.org/abs/2302.06675: half of Adam's state."""

    type: Literal["lion"] = "lion"
    """Which optimizer this is."""
    learning_rate: float = Field(gt=0)
    """Peak learning rate; each weight moves by it in each step. 3 to 10 times below AdamW's, with
    a weight decay that is as many times larger."""
    b1: float = Field(default=0.9, ge=0, lt=1)
    """Share of the mean in the step's direction; the rest is the gradient."""
    b2: float = Field(default=0.99, ge=0, lt=1)
    """Decay of the mean of gradients."""

    forgets: ClassVar[tuple[str, ...]] = ("b2",)

    def _rule(self, name: str, declared: Any) -> optax.GradientTransformation:
        return self._stored(optax.scale_by_lion(b1=self.b1, b2=self.b2))


class Muon(OptimizerBase):
    """Orthogonalised momentum for the matrices of the layers, Adam for all else.

    https://kellerjordan.github.io/posts/muon, https://arxiv.org/abs/2502.16982. Embedding, head,
    norms and biases have Adam and a learning rate of their own; both decay alike.
    """

    type: Literal["muon"] = "muon"
    """Which optimizer this is."""
    learning_rate: float = Field(gt=0)
    """Peak learning rate of the layers' matrices. Without `consistent_rms` it is in Muon's own
    scale, where 0.02 is usual before RL; with 0.2 it is near AdamW's."""
    adam_learning_rate: float = Field(gt=0)
    """Peak learning rate of all else, on the same schedule."""
    beta: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the mean of gradients that is orthogonalised."""
    nesterov: bool = True
    """Looks ahead by one more step of that mean."""
    newton_schulz_steps: int = Field(default=5, ge=1, le=20)
    """Iterations that make a matrix nearly orthogonal; each is three products."""
    consistent_rms: float | None = Field(default=None, gt=0)
    """Root mean square of every matrix's step, whatever its shape; AdamW's is near 0.2. None
    scales a step of spectral norm 1 by sqrt(max(1, columns / rows))."""
    adam_b1: float = Field(default=0.9, ge=0, lt=1)
    """As AdamW's b1, of all else."""
    adam_b2: float = Field(default=0.999, ge=0, lt=1)
    """As AdamW's b2, of all else."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """As AdamW's eps, of all else."""

    forgets: ClassVar[tuple[str, ...]] = ("beta", "adam_b1", "adam_b2")

    def _check_rules(self, used: Collection[str]) -> None:
        if "muon" not in used:
            raise ValueError(
                f"type = 'muon' with learning_rate = {self.learning_rate} cannot act: no matrix of "
                "the layers trains; set type = 'adamw', or freeze less"
            )

    def _treatments(self, declared: Any) -> Any:
        own = self.adam_learning_rate / self.learning_rate

        def with_rate(param: Param, treatment: Treatment) -> Treatment:
            factor = treatment.factor * (1.0 if self._rule_of(param) == "muon" else own)
            return dataclasses.replace(treatment, factor=factor)

        return jax.tree.map(with_rate, declared, super()._treatments(declared), is_leaf=is_param)

    def _rule_of(self, param: Param) -> str:
        return "muon" if param.is_stacked and param.is_matrix else "adam"

    def _rule(self, name: str, declared: Any) -> optax.GradientTransformation:
        if name == "adam":
            return self._stored(
                optax.scale_by_adam(b1=self.adam_b1, b2=self.adam_b2, eps=self.adam_eps)
            )
        # What is neither row nor column, the layers, is a batch.
        dims = jax.tree.map(
            lambda param: contrib.MuonDimensionNumbers(*param.sides), declared, is_leaf=is_param
        )
        return optax.chain(
            self._stored(
                contrib.scale_by_muon(
                    ns_steps=self.newton_schulz_steps,
                    beta=self.beta,
                    nesterov=self.nesterov,
                    weight_dimension_numbers=dims,
                )
            ),
            optax.stateless(
                lambda steps, _: jax.tree.map(
                    lambda param, step: self._scale(param) * step, declared, steps, is_leaf=is_param
                )
            ),
        )

    def _scale(self, param: Param) -> float:
        """From a step of spectral norm 1 to the step of a matrix."""
        rows, columns = sizes_of(param)
        if self.consistent_rms is None:
            return max(1.0, columns / rows) ** 0.5
        return self.consistent_rms * max(rows, columns) ** 0.5


def _treated(step: jax.Array, param: jax.Array, treatment: Treatment) -> jax.Array:
    if treatment.decay:
        step = step + treatment.decay * param
    return step if treatment.factor == 1 else treatment.factor * step


def _type_of(given: Any) -> Any:
    return (
        given.get("type", "adamw") if isinstance(given, dict) else getattr(given, "type", "adamw")
    )


Optimizer = Annotated[
    Annotated[AdamW, Tag("adamw")]
    | Annotated[Adafactor, Tag("adafactor")]
    | Annotated[Lion, Tag("lion")]
    | Annotated[Muon, Tag("muon")],
    Discriminator(_type_of),
]
"""An optimizer by its `type`, adamw where none is said."""
