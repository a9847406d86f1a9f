"""The page of all losses: as the script makes it, whole, and linked to the configs."""

import importlib
import inspect
import re
from pathlib import Path
from typing import get_args

import pytest

from jaxrl_vr import losses
from jaxrl_vr.losses import advantages, kl, policy, weights
from jaxrl_vr.train.advantage import Advantage, Reward
from jaxrl_vr.train.objectives import PolicyUnion
from jaxrl_vr.train.offpolicy import Offpolicy
from jaxrl_vr.train.shaping import Shaping
from jaxrl_vr.train.weights import Weights

ROOT = Path(__file__).parents[2]
PUBLIC = [name for name in losses.__all__ if inspect.isfunction(getattr(losses, name))]


@pytest.fixture
def script(monkeypatch):
    """The module; docs are no package, and not installed."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("generate_losses")


def test_page_is_what_the_script_makes_now(script):
    fix = "run `python docs/generate_losses.py` and commit docs/losses.md"
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), fix


def test_page_has_every_public_function_once(script):
    page = script.PAGE.read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### (\w+)$", page, re.M)) == PUBLIC
    assert sorted(re.findall(r"^\| \[`(\w+)`\]", page, re.M)) == PUBLIC


def test_a_function_of_no_public_module_is_an_error(script, monkeypatch):
    def lonely():
        """Nothing."""

    monkeypatch.setattr(losses, "lonely", lonely, raising=False)
    monkeypatch.setattr(losses, "__all__", [*losses.__all__, "lonely"])
    with pytest.raises(ValueError, match=r"\['lonely'\] are in no public module of losses"):
        script.page()


def test_names_elsewhere_are_of_functions_that_exist(script):
    assert script.NAMES.keys() - set(PUBLIC) == set()
    assert all(any(names) for names in script.NAMES.values())
    columns = [cell for names in script.NAMES.values() for cell in names]
    assert not [cell for cell in columns if "|" in cell], "would end a cell of the table"


def test_every_type_of_a_config_leads_to_a_loss(script):
    uses = [use for of_function in script.uses_of_losses().values() for use in of_function]
    for union in (Advantage, PolicyUnion, Offpolicy, Shaping, Weights):
        for config in get_args(get_args(union)[0]):
            if config is not Reward:  # the reward itself needs no function
                assert any(use.config is config for use in uses), config


@pytest.mark.parametrize(
    "function, texts",
    [
        (advantages.group_norm, ['`advantage.type = "group_norm"`']),  # a class variable
        (weights.prompt_mean, ['`weights.type = "prompt_mean"`']),  # called in its code
        (policy.ppo_clip, ['`objective.type = "ppo_clip"`']),
        (kl.k3, ['`kl.type = "k3"`']),  # by a table
        (kl.adaptive_kl, ["`kl`"]),
        (losses.adaptive_entropy, ["`entropy_bonus`"]),  # imported by name
        (losses.clipped_value_loss, ["`critic`"]),  # by hand
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_config_that_chooses_a_function(script, function, texts):
    assert [use.text() for use in script.uses_of_losses()[function]] == texts


def test_presets_use_also_what_they_leave_at_its_default(script):
    parts = script.presets(ROOT / "configs")["quickstart"]
    assert "group_norm" not in (ROOT / "configs" / "quickstart.toml").read_text(encoding="utf-8")
    uses = script.uses_of_losses()
    used = {f.__name__ for f, of_it in uses.items() if any(use.is_in(parts) for use in of_it)}
    assert {"group_norm", "ppo_clip", "token_mean"} <= used
    assert not used & {"leave_one_out", "gspo", "sequence_mean", "k1"}


def test_docstrings_are_cut_at_the_right_places(script):
    first, formula, source = script.split_docstring(kl.kl_in_reward)
    assert first.startswith("Rewards of tokens: minus the KL at each")
    assert formula == "r_t = -coef KL_t + [t is the last trained token] reward."
    assert source.startswith("Source: https://arxiv.org/abs/1909.08593, equation 2; AlpacaFarm, ")
    assert "https://arxiv.org/abs/2305.14387," in source  # broken over two lines in the docstring
    assert source.endswith("TRL and verl do not clamp.")
    shown = "kl_in_reward(reward, logp, ref_logp, mask, *, coef, clamp_at_zero=False, estimator=k1"
    assert script.signature(kl.kl_in_reward).startswith(shown)
