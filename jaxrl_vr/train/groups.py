"""Which parameters an optimizer treats apart: groups, what decays, and what is frozen, by name.

A parameter's name is its path, such as `layers/q`. The layers are stacked in one array, so no
pattern tells them apart.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from pydantic import Field, model_validator

from jaxrl_vr.config import Config
from jaxrl_vr.models.params import is_param


class Group(Config):
    """Parameters that are treated apart. Each belongs to the first group that matches it."""

    match: str = Field(min_length=1)
    """Glob on the parameter's path: `embed`, `layers/*_norm`, `*bias`. `*` matches `/` too."""
    learning_rate_factor: float | None = Field(default=None, gt=0)
    """Factor on the optimizer's learning rate; None is 1."""
    weight_decay: float | None = Field(default=None, ge=0)
    """Decay of those of them that decay, in the place of the optimizer's; None is the same."""
    frozen: bool = False
    """They do not train: no gradient, no state of the optimizer."""

    @model_validator(mode="after")
    def _check(self) -> Group:
        given = {
            name: value
            for name in ("learning_rate_factor", "weight_decay")
            if (value := getattr(self, name)) is not None
        }
        if self.frozen and given:
            name, value = next(iter(given.items()))
            raise ValueError(
                f"{name} = {value} cannot act with frozen = true, as nothing of {self.match!r} "
                "moves; leave one of them out"
            )
        if not self.frozen and not given:
            raise ValueError(
                f"the group of {self.match!r} says nothing of its parameters; give it "
                "learning_rate_factor, weight_decay or frozen = true (learning_rate_factor = 1 "
                "keeps them out of later groups)"
            )
        return self


@dataclasses.dataclass(frozen=True)
class Treatment:
    """How an optimizer treats one parameter.

    Attributes:
      factor: on the learning rate.
      decay: of the weight, times that rate.
      is_frozen: whether it stays as it is.
    """

    factor: float = 1.0
    decay: float = 0.0
    is_frozen: bool = False


def treatments(
    declared: Any,
    *,
    groups: Sequence[Group],
    weight_decay: float,
    decay: Sequence[str],
    no_decay: Sequence[str],
) -> Any:
    """How each parameter is treated: a tree like that of the parameters.

    Args:
      declared: parameters as `Param`.
      groups: the first that matches counts.
      weight_decay: of what decays: matrices, and what a pattern of `decay` matches, but nothing
        that one of `no_decay` does.
      decay, no_decay: globs on the parameters' paths.

    Raises:
      ValueError: a pattern or a group that cannot act, or nothing that trains.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(declared, is_leaf=is_param)
    params = {jax.tree_util.keystr(path, simple=True, separator="/"): p for path, p in leaves}
    decays = {name for name, param in params.items() if param.is_matrix}
    for key, patterns, is_more in (("decay", decay, True), ("no_decay", no_decay, False)):
        for pattern in patterns:
            matched = _matched(f"{key} = {pattern!r}", pattern, list(params))
            if not (set(matched) - decays if is_more else decays & set(matched)):
                raise ValueError(
                    f"{key} = {pattern!r} cannot act: what it matches ({', '.join(matched)}) "
                    f"{'decays already' if is_more else 'does not decay'}; leave it out"
                )
            decays = decays | set(matched) if is_more else decays - set(matched)
    of_group = _members(groups, list(params))
    for index, group in enumerate(groups):
        mine = [name for name, found in of_group.items() if found is group]
        if group.weight_decay is not None and not decays & set(mine):
            raise ValueError(
                f"groups.{index}.weight_decay = {group.weight_decay} cannot act: of the parameters "
                f"of {group.match!r} ({', '.join(mine)}) none decays; leave it out, or set decay = "
                f"[{group.match!r}]"
            )
    found = {
        name: _treatment(of_group.get(name), weight_decay if name in decays else None)
        for name in params
    }
    if all(one.is_frozen for one in found.values()):
        raise ValueError(
            f"groups freeze all of {', '.join(params)}, so nothing trains; leave a group out"
        )
    return jax.tree.unflatten(tree, found.values())


def _treatment(group: Group | None, decay: float | None) -> Treatment:
    """Of a parameter of a group, or of none; a decay of None: it does not decay."""
    if group is None:
        return Treatment(decay=decay or 0.0)
    if group.frozen:
        return Treatment(is_frozen=True)
    if decay is not None and group.weight_decay is not None:
        decay = group.weight_decay
    factor = 1.0 if group.learning_rate_factor is None else group.learning_rate_factor
    return Treatment(factor, decay or 0.0)


def _members(groups: Sequence[Group], names: Sequence[str]) -> Mapping[str, Group]:
    """The group of each parameter that has one."""
    found: dict[str, Group] = {}
    for index, group in enumerate(groups):
        where = f"groups.{index}.match = {group.match!r}"
        matched = _matched(where, group.match, names)
        new = [name for name in matched if name not in found]
        if not new:
            raise ValueError(
                f"{where} cannot act: earlier groups have all that it matches "
                f"({', '.join(matched)}); put it before them, or leave it out"
            )
        found |= dict.fromkeys(new, group)
    return found


def _matched(where: str, pattern: str, names: Sequence[str]) -> list[str]:
    matched = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not matched:
        near = difflib.get_close_matches(pattern, names, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{where} matches no parameter; {hint}there are {', '.join(names)}")
    return matched
