"""Writes docs/losses.md, the page of all losses, from the losses themselves.

    python docs/generate_losses.py

Formulas and papers come from the docstrings, the config types from the code of `jaxrl_vr.train`,
the presets from `configs/presets`. Only what other trainers call a loss is written down here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeGuard, get_args

from jaxrl_vr import losses
from jaxrl_vr.config import Config, load
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.critic import CriticConfig
from jaxrl_vr.train.imitation import LmMix, PositiveNll
from jaxrl_vr.train.penalty import EntropyBonus
from jaxrl_vr.train.rl_stage import DynamicSampling
from jaxrl_vr.train.selection import TopEntropy
from jaxrl_vr.train.shaping import TruncatedMask
from jaxrl_vr.train.stages import DpoStage, SftStage

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "losses.md"

INTRO = """\
# Losses

Every public function of `jaxrl_vr.losses`, with its formula, its sources, the config that chooses
it, the presets that use it, and what TRL, verl, OpenRLHF and Tunix call it, with their defaults
where they differ from ours. An empty cell means that no counterpart is known. Arguments and shapes
are in the docstrings.

This page is made by `python docs/generate_losses.py`; change that script, or a docstring.
"""

CONFIG_KEYS = {
    "advantage": "advantage",
    "objectives": "objective",
    "weights": "weights",
    "shaping": "shaping",
    "offpolicy": "offpolicy",
    "penalty": None,  # two tables, each named after its class
}
"""Module of `jaxrl_vr.train` -> the key of a stage that its config types stand under."""


class Names(NamedTuple):
    """What other trainers call a function, and their defaults where they are not ours."""

    trl: str = ""
    verl: str = ""
    openrlhf: str = ""
    tunix: str = ""


NAMES = {
    "group_norm": Names(
        '`scale_rewards="group"` (default): sample deviation',
        "`adv_estimator=grpo`: sample deviation, eps 1e-6",
        "`--algo.advantage.estimator group_norm`",
        '`advantage_estimator="grpo"` (default): sample deviation, eps 1e-6',
    ),
    "group_center": Names(
        '`scale_rewards="none"`',
        "`adv_estimator=grpo`, `norm_adv_by_std_in_grpo=False`",
        "`--algo.advantage.estimator dr_grpo`",
        '`advantage_estimator="drgrpo"`',
    ),
    "leave_one_out": Names(
        "`RLOOTrainer`",
        "`adv_estimator=rloo`",
        "`--algo.advantage.estimator rloo`",
        '`advantage_estimator="rloo"`',
    ),
    "batch_norm": Names('`scale_rewards="batch"`: sample deviation'),
    "max_rl": Names('`scale_rewards="mean"`: plus an eps'),
    "opo": Names(verl="`adv_estimator=opo`"),
    "remax": Names(verl="`adv_estimator=remax`"),
    "gdpo": Names(
        '`multi_objective_aggregation="normalize_then_sum"`',
        "`adv_estimator=gdpo`: eps 1e-6, whitened over tokens",
    ),
    "reinforce_plus_plus_baseline": Names(
        verl="`adv_estimator=reinforce_plus_plus_baseline`",
        openrlhf="`--algo.advantage.estimator reinforce_baseline`",
    ),
    "has_contrast": Names(
        verl="`filter_groups.enable` (off)",
        openrlhf="`--algo.dynamic_filtering_enable` (off): mean reward inside of a range, (0, 1)",
    ),
    "gae": Names(
        "`PPOConfig`: `lam` 0.95",
        "`adv_estimator=gae`: always whitened",
        "`--algo.advantage.estimator gae` (default)",
        '`advantage_estimator="gae"`: `gae_lambda` 0.95, always whitened',
    ),
    "reinforce_plus_plus": Names(
        verl="`adv_estimator=reinforce_plus_plus`",
        openrlhf="`--algo.advantage.estimator reinforce`",
    ),
    "whiten": Names(
        "`whiten_rewards` (off): sample variance",
        "`masked_whiten`: sample variance",
        tunix="`masked_whiten`: sample variance",
    ),
    "forward_kl": Names(
        "`GKDConfig(beta=0.0)`", openrlhf="`KDLoss`: without the teacher's entropy"
    ),
    "reverse_kl": Names("`GKDConfig(beta=1.0)`"),
    "jensen_shannon": Names("`GKDConfig.beta`; at 0 and 1 the two KLs"),
    "entropy_bonus": Names(
        verl="`entropy_coeff` 0",
        openrlhf="`--actor.entropy_coef`, off",
        tunix="`PPOConfig.entropy_coef`, off",
    ),
    "k1": Names(
        '`PPOConfig(kl_estimator="k1")` (default)',
        "`k1`, `kl`",
        "`--algo.kl.estimator k1` (default)",
        '`kl_loss_mode="kl"` (default)',
    ),
    "k2": Names("", "`k2`, `mse`", "`--algo.kl.estimator k2`", '`kl_loss_mode="mse_kl"`'),
    "k3": Names(
        '`PPOConfig(kl_estimator="k3")`; in GRPO `beta` 0.0 weighs it',
        "`k3`, `low_var_kl` (default of `kl_loss_type`): at most 10",
        "`--algo.kl.estimator k3`",
        '`kl_loss_mode="low_var_kl"`',
    ),
    "unbiased_k3": Names("`use_bias_correction_kl` (off)"),
    "k1_straight_through": Names(verl="`k1+`, `kl+`"),
    "k3_straight_through": Names(verl="`k3+`, `low_var_kl+`"),
    "kl_in_reward": Names(
        "`PPOConfig.kl_coef` 0.05",
        "`algorithm.kl_ctrl.kl_coef` 0.001",
        "`--algo.kl.init_coef` 0.01",
    ),
    "adaptive_kl": Names(
        verl='`algorithm.kl_ctrl.type="adaptive"`: `target_kl` 0.1, `horizon` 10,000',
        openrlhf="`--algo.kl.target` (off), `--algo.kl.horizon` 10,000",
    ),
    "tis": Names(
        '`vllm_importance_sampling_mode="token_truncate"`: cap 3',
        '`rollout_is="token"`',
        "`--vllm_is_correction_type tis`: ratio clipped to [0.5, 5]",
        '`sampler_is="token"`',
    ),
    "sequence_tis": Names(
        '`vllm_importance_sampling_mode="sequence_truncate"`: cap 3',
        '`rollout_is="sequence"`',
    ),
    "mis": Names('`vllm_importance_sampling_mode="token_mask"`: cap 3'),
    "sequence_mis": Names(
        '`vllm_importance_sampling_mode="sequence_mask"` (default): cap 3',
        '`rollout_rs="seq_sum_k1"`: masks without weighting; bounds 0.5 and 2 in its presets',
    ),
    "geometric_mis": Names(
        "",
        '`rollout_rs="seq_mean_k1"`: masks without weighting; bounds 0.999 and 1.001 in its '
        "presets",
        "`--vllm_is_correction_type seq-mask-tis`: bounds 0.5 and 5",
        '`truncated_importance_sampling_type="seq-mask-tis"`: keeps the weights of tokens; no '
        "default bounds",
    ),
    "icepop": Names(
        "",
        '`rollout_is="token"`, `rollout_is_threshold="0.5_5.0"`',
        "`--vllm_is_correction_type icepop`",
    ),
    "veto": Names(verl="`rollout_token_veto_threshold` (off), in versions that have it"),
    "effective_sample_size": Names(verl="metric `rollout_is_eff_sample_size`"),
    "reinforce": Names(verl="`loss_mode=gpg`"),
    "ppo_clip": Names(
        "`epsilon`, `epsilon_high`; `delta` (off) is `max_ratio`",
        "`loss_mode=vanilla` (default): `clip_ratio_c`, our `dual_clip`, is 3",
        "`--actor.policy_loss_type ppo` (default): `--actor.eps_clip_low_high`, "
        "`--actor.dual_clip`",
        '`policy_loss_fn="grpo"` or `"ppo"`: `epsilon`, `epsilon_high`; `epsilon_c` (off) is '
        "`dual_clip`",
    ),
    "gspo": Names(
        '`importance_sampling_level="sequence"`: range 0.2',
        "",
        "`--actor.policy_loss_type gspo`: range 0.2",
    ),
    "gspo_token": Names(
        "experimental `gspo_token`",
        "`loss_mode=gspo`: range 0.2, always averaged by sequence",
        "",
        '`loss_algo="gspo-token"`: range 0.2',
    ),
    "cispo": Names(
        '`loss_type="cispo"`: `epsilon_high` is the cap itself, our `clip_high` + 1; no lower '
        "bound",
        "`loss_mode=cispo`: offsets from 1 as here, 0.2 each",
    ),
    "sapo": Names(
        '`loss_type="sapo"`: `sapo_temperature_pos`, `sapo_temperature_neg`',
        "`loss_mode=sapo`: `tau_pos`, `tau_neg`; always averaged by sequence",
    ),
    "gmpo": Names(verl="`loss_mode=geo_mean`: range 0.2"),
    "dppo_tv": Names(verl="`loss_mode=dppo_tv`: `clip_ratio_c`, our `max_ratio`, is 3"),
    "dppo_kl": Names(
        verl="`loss_mode=dppo_kl`: threshold 0.2; `clip_ratio_c`, our `max_ratio`, is 3"
    ),
    "decoupled_ppo": Names(
        verl="`rollout_correction` with `bypass_mode=False`: weight truncated at 2"
    ),
    "clip_cov": Names(verl="`loss_mode=clip_cov`"),
    "select_clip_cov": Names(verl="`clip_cov_ratio`, `clip_cov_lb`, `clip_cov_ub`"),
    "kl_cov": Names(verl="`loss_mode=kl_cov`: `ppo_kl_coef` 0.1"),
    "select_kl_cov": Names(verl="`kl_cov_ratio` 0.0002"),
    "opsm": Names("`off_policy_mask_threshold` (off)"),
    "entropy_threshold": Names("`top_entropy_quantile` 1.0"),
    "top_entropy_mask": Names("`top_entropy_quantile` 1.0"),
    "dpo": Names("`DPOTrainer`", "", "`DPOLoss`", "`DPOTrainer`"),
    "overlong_penalty": Names(
        "`get_soft_overlong_punishment`",
        "`overlong_buffer`: falls on beyond the limit",
        "`--reward.overlong_buffer_len` (off), `--reward.overlong_penalty_factor`",
    ),
    "truncated_mask": Names(
        "`mask_truncated_completions` (off)", tunix="`overlong_loss_masking` (off)"
    ),
    "stop_properly_penalty": Names(openrlhf="`--reward.stop_properly_penalty_coef` (off)"),
    "cross_entropy": Names(openrlhf="`SFTLoss`"),
    "pretraining_mix": Names(openrlhf="`--ptx_coef` 0.05, in versions that have it"),
    "bradley_terry": Names(openrlhf="`PairWiseLoss`"),
    "step_cross_entropy": Names(openrlhf="`PRMLoss`"),
    "clipped_value_loss": Names(
        "`PPOConfig.cliprange_value`",
        "`critic.cliprange_value` 0.5",
        "`--critic.value_clip` 0.5",
        "`PPOConfig.clip_range_value`",
    ),
    "token_mean": Names(
        '`loss_type="dapo"` (default)',
        "`loss_agg_mode=token-mean` (default)",
        "default, of each micro-batch",
        '`loss_agg_mode="token-mean"`',
    ),
    "sequence_mean": Names(
        '`loss_type="grpo"`',
        "`loss_agg_mode=seq-mean-token-mean`",
        "with `gspo`",
        '`loss_agg_mode="sequence-mean-token-mean"` (default)',
    ),
    "sequence_sum": Names(
        verl="`loss_agg_mode=seq-mean-token-sum`",
        tunix='`loss_agg_mode="seq-mean-token-sum"`',
    ),
    "constant_length": Names(
        '`loss_type="dr_grpo"`',
        "`loss_agg_mode=seq-mean-token-sum-norm`, `loss_scale_factor`",
        "",
        '`loss_agg_mode="sequence-mean-token-sum-norm"`',
    ),
}
"""Function -> its names elsewhere, read off the code of TRL (GRPOConfig, experimental PPOConfig),
verl (core_algos, AlgoConfig, ActorConfig), OpenRLHF (train_ppo_ray, loss) and Tunix (algo_core,
algorithm_config, agentic PPOConfig)."""


def public_functions() -> dict[str, dict[str, Callable[..., Any]]]:
    """Public module of `losses` -> its functions, as `from jaxrl_vr.losses import ...` has them."""
    public = {name: getattr(losses, name) for name in losses.__all__}
    functions = {name: value for name, value in public.items() if inspect.isfunction(value)}
    found = {}
    for module_name, module in public.items():
        if not isinstance(module, ModuleType):
            continue
        found[module_name] = {
            name: value
            for name, value in vars(module).items()
            if functions.get(name) is value and not _is_borrowed(module, value)
        }
    lost = functions.keys() - {name for names in found.values() for name in names}
    if lost:
        raise ValueError(f"{sorted(lost)} are in no public module of losses; add the module")
    return found


def _is_borrowed(module: ModuleType, function: Callable[..., Any]) -> bool:
    """Whether a module only uses a function of another public one."""
    home = function.__module__.removeprefix("jaxrl_vr.losses.")
    return function.__module__ != module.__name__ and home in losses.__all__


class Use(NamedTuple):
    """A config type, or one value of its `type`, whose code calls a loss."""

    config: type[Config]
    key: str
    tag: str | None

    def text(self) -> str:
        """How a config spells it."""
        return f"`{self.key}`" if self.tag is None else f'`{self.key}.type = "{self.tag}"`'

    def is_in(self, parts: list[Config]) -> bool:
        """Whether one of a run's config models is this."""
        tags = [getattr(part, "type", None) for part in parts if type(part) is self.config]
        return bool(tags) if self.tag is None else self.tag in tags


UNSEEN = {
    "clipped_value_loss": Use(CriticConfig, "critic", None),
    "cross_entropy": Use(SftStage, "stages", "sft"),
    "entropy_bonus": Use(EntropyBonus, "entropy_bonus", None),
    "entropy_threshold": Use(TopEntropy, "tokens", "top_entropy"),
    "has_contrast": Use(DynamicSampling, "dynamic_sampling", None),
    "packed_dpo": Use(DpoStage, "stages", "dpo"),
    "positive_nll": Use(PositiveNll, "positive_nll", None),
    "pretraining_mix": Use(LmMix, "lm_mix", None),
    "top_entropy_mask": Use(TopEntropy, "tokens", "top_entropy"),
    "truncated_mask": Use(TruncatedMask, "shaping", "truncated_mask"),
}
"""Losses whose config types do not name them in their code: another function calls them, or has
the formula once more for its own arrays."""


def uses_of_losses() -> dict[Callable[..., Any], list[Use]]:
    """Function of `losses` -> the config types that call it."""
    found: dict[Callable[..., Any], list[Use]] = {}
    for name, key in CONFIG_KEYS.items():
        module = importlib.import_module(f"jaxrl_vr.train.{name}")
        for config in vars(module).values():
            is_own = inspect.isclass(config) and config.__module__ == module.__name__
            if not is_own or not issubclass(config, Config):
                continue
            for function, tag in _calls(config, module):
                use = Use(config, key or _snake(config.__name__), tag)
                if use not in found.setdefault(function, []):
                    found[function].append(use)
    for name, use in UNSEEN.items():
        found.setdefault(getattr(losses, name), []).append(use)
    return found


def _calls(
    config: type[Config], module: ModuleType
) -> Iterator[tuple[Callable[..., Any], str | None]]:
    """The losses that a config type's code names, each with the `type` that selects it."""
    field = config.model_fields.get("type")
    tags = get_args(field.annotation) if field is not None else ()
    own = tags[0] if len(tags) == 1 else None
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(config)))):
        if isinstance(node, ast.Name) and _is_loss(vars(module).get(node.id)):
            yield vars(module)[node.id], own
        elif isinstance(node, ast.Attribute):
            function = getattr(_losses_module(node.value, module), node.attr, None)
            if _is_loss(function):
                yield function, own
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            # TABLE[self.type]: a dict of the module from type to function
            table = vars(module).get(node.value.id)
            for tag in tags if isinstance(table, dict) else ():
                if _is_loss(table.get(tag)):
                    yield table[tag], tag


def _losses_module(node: ast.expr, module: ModuleType) -> Any:
    value = vars(module).get(node.id) if isinstance(node, ast.Name) else None
    return value if getattr(value, "__package__", "") == losses.__name__ else None


def _is_loss(value: Any) -> TypeGuard[FunctionType]:
    return inspect.isfunction(value) and value.__module__.startswith(f"{losses.__name__}.")


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def presets(folder: Path = ROOT / "configs" / "presets") -> dict[str, list[Config]]:
    """Name of a preset -> all config models of its stages, those with defaults included."""
    found = {}
    for file in sorted(folder.glob("*.toml")):
        # A preset is an algorithm alone; the quickstart is a run to lay it over.
        run = load(RunConfig, [ROOT / "configs" / "quickstart.toml", file])
        own = [stage["name"] for stage in tomllib.loads(file.read_text())["stages"]]
        found[file.stem] = list(_models([s for s in run.stages if s.name in own]))
    return found


def _models(value: Any) -> Iterator[Config]:
    if isinstance(value, Config):
        yield value
        value = [getattr(value, name) for name in type(value).model_fields]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for inner in value:
        yield from _models(inner)


def signature(function: Callable[..., Any]) -> str:
    """A function's arguments and defaults, without types."""
    parts = []
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = parameter.default
        shown = default.__name__ if inspect.isfunction(default) else repr(default)
        has_default = default is not parameter.empty
        parts.append(f"{parameter.name}={shown}" if has_default else parameter.name)
    return f"{function.__name__}({', '.join(parts)})"


def split_docstring(function: Callable[..., Any]) -> tuple[str, str, str]:
    """The first line, what follows it up to the source, and the source with its remarks."""
    text = inspect.getdoc(function) or ""
    first, _, rest = text.partition("\n")
    before = re.split(r"^(?:Args:|Raises:|Returns:|>>>)", rest, maxsplit=1, flags=re.M)[0]
    formula, *source = re.split(r"^(?=Sources?: )", before, maxsplit=1, flags=re.M)
    # A long link is broken over two lines behind a slash.
    return first, formula.strip(), re.sub(r"(https?://\S+/)\n", r"\1", "".join(source)).strip()


def page() -> str:
    """The text of docs/losses.md."""
    uses, shipped = uses_of_losses(), presets()
    lines = [INTRO]
    for module, functions in public_functions().items():
        about = (inspect.getdoc(getattr(losses, module)) or "").split("\n")[0]
        lines += [f"## losses.{module}\n", f"{about}\n"]
        lines += ["| function | config | presets | TRL | verl | OpenRLHF | Tunix |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for name, function in functions.items():
            of_function = uses.get(function, [])
            config = ", ".join(use.text() for use in of_function)
            using = [
                preset
                for preset, parts in shipped.items()
                if any(use.is_in(parts) for use in of_function)
            ]
            cells = [f"[`{name}`](#{name})", config, ", ".join(using), *NAMES.get(name, Names())]
            lines.append(" ".join(f"| {cell}" if cell else "|" for cell in cells) + " |")
        lines.append("")
        for name, function in functions.items():
            first, formula, source = split_docstring(function)
            lines += [f"### {name}\n", f"{first}\n", f"```text\n{signature(function)}"]
            lines += [f"\n{formula}\n```\n" if formula else "```\n"]
            lines += [f"{source}\n"] if source else []
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
