"""Parts of an algorithm that do not go together are refused, with the fix."""

import pytest
from inprocess import ONES, call, config, rl

from jaxrl_vr.config import load, parse
from jaxrl_vr.train.config import RunConfig
from jaxrl_vr.train.imitation import LmMix
from jaxrl_vr.train.rl_stage import RlStage

STAGE = {
    "name": "rl",
    "data": ["ones"],
    "steps": 3,
    "prompts": 4,
    "samples": 4,
    "sampling": {"max_new_tokens": 4},
    "optimizer": {"type": "adamw", "learning_rate": 1e-3},
}
CRITIC = {"optimizer": {"type": "adamw", "learning_rate": 1e-3}}
GAE = {"advantage": {"type": "gae"}, "critic": CRITIC}
DPO = {"advantage": {"type": "preference_pairs"}, "objective": {"type": "dpo"}}
TIS = {"offpolicy": [{"type": "tis"}], "old_logp": "recomputed"}

REFUSED = {
    "group-of-one": ({"samples": 1}, ["samples = 1", "group_norm", "set samples to 2 or more"]),
    "values-without-critic": ({"advantage": {"type": "gae"}}, ["add a critic = {"]),
    "critic-without-values": ({"critic": CRITIC}, ["critic cannot act", "{ type = 'gae' }"]),
    "critic-only-warms-up": (
        {**GAE, "critic": {**CRITIC, "warmup_steps": 3}},
        ["critic.warmup_steps = 3 with steps = 3", "lower it"],
    ),
    "more-judged-than-sampled": (
        {"advantage": {"type": "pass_at_k", "k": 5}},
        ["advantage.k = 5 with samples = 4", "lower k or raise samples"],
    ),
    "rft-of-advantages": (
        {"objective": {"type": "rft"}},
        ["'rft' with advantage 'group_norm'", "{ type = 'reward' }"],
    ),
    "dpo-without-pairs": ({"objective": {"type": "dpo"}}, ["'preference_pairs'", "set both"]),
    "pairs-without-dpo": ({"advantage": {"type": "preference_pairs"}}, ["'dpo'", "or neither"]),
    "decoupled-with-one-policy": (
        {"objective": {"type": "decoupled_ppo"}},
        ["old_logp = 'sampler'", "set old_logp = 'recomputed'"],
    ),
    "updates-without-groups": (
        {"updates": 5},
        ["updates = 5 with prompts = 4", "lower updates or raise prompts"],
    ),
    "schedule-that-starts-late": (
        {"updates": [{"step": 1, "updates": 2}]},
        ["updates: its steps are [1]", "start at 0"],
    ),
    "correction-that-sees-no-gap": (
        {"offpolicy": [{"type": "tis"}]},
        ["offpolicy 'tis' with old_logp = 'sampler'", "set old_logp = 'recomputed'"],
    ),
    "recomputed-for-nothing": (
        {"old_logp": "recomputed", "objective": {"type": "reinforce"}},
        ["old_logp = 'recomputed' cannot act", "use 'ppo_clip'"],
    ),
    "recomputed-for-a-mask-by-the-sampler": (
        {
            "old_logp": "recomputed",
            "objective": {"type": "reinforce"},
            "offpolicy": [{"type": "opsm"}],
        },
        ["old_logp = 'recomputed' cannot act"],
    ),
    "greedy-rollouts": (
        {"sampling": {"max_new_tokens": 4, "temperature": 0}},
        ["sampling.temperature = 0", "set it near 1"],
    ),
    "kl-in-no-reward": (
        {"advantage": {"type": "process_group_norm"}, "kl": {"coef": 0.1, "where": "reward"}},
        ["kl.where = 'reward' cannot act with advantage 'process_group_norm'"],
    ),
    "shaping-of-no-reward": (
        {
            "advantage": {"type": "process_group_norm"},
            "shaping": [{"type": "overlong_penalty", "buffer": 2}],
        },
        ["shaping 'overlong_penalty' cannot act"],
    ),
    "kl-in-a-judged-reward": (
        {"advantage": {"type": "pass_at_k", "k": 2}, "kl": {"coef": 0.1, "where": "reward"}},
        ["above 0.5", "set kl.where = 'loss'"],
    ),
    "kl-in-a-reward-that-divides": (
        {"advantage": {"type": "max_rl"}, "kl": {"coef": 0.1, "where": "reward"}},
        ["'max_rl', which divides by the mean reward", "set kl.where = 'loss'"],
    ),
    "coefficient-that-would-change-its-sign": (
        {"kl": {"coef": 0.1, "adaptive": {"target": 6.0, "horizon": 3.0}}},
        ["kl.adaptive.horizon = 3 with 16 rollouts a step", "at least 16"],
    ),
    "too-much-likelihood": ({"positive_nll": {"coef": 1e300}}, ["positive_nll.coef", "1000000"]),
    "too-many-texts": (
        {"lm_mix": {"data": ["ones"], "batch": 10**12}},
        ["lm_mix.batch", "less than or equal to 1000000"],
    ),
    "shuffled-steps": (
        {"advantage": {"type": "process_group_norm"}, "control": "shuffled_rewards"},
        ["control = 'shuffled_rewards'", "use another advantage"],
    ),
    "shuffled-rewards-made-of-steps": (
        {"shaping": [{"type": "step_reward"}], "control": "shuffled_rewards"},
        ["shaping ['step_reward']", "use another advantage and shaping"],
    ),
    "shuffled-rewards-beside-a-teacher": (
        {
            "advantage": {"type": "on_policy_distillation", "teacher": "base"},
            "control": "shuffled_rewards",
        },
        ["or a teacher (advantage 'on_policy_distillation'"],
    ),
    "one-ratio-many-advantages": (
        {**GAE, "objective": {"type": "gspo"}},
        ["'gspo' with advantage 'gae'", "'gspo_token'"],
    ),
    "contrast-of-one": (
        {"advantage": {"type": "reward"}, "samples": 1, "dynamic_sampling": {}},
        ["dynamic_sampling with samples = 1", "2 or more"],
    ),
    "contrast-of-what-does-not-train": (
        {"advantage": {"type": "process_group_norm"}, "dynamic_sampling": {}},
        ["dynamic_sampling looks at the verifier's reward", "leave dynamic_sampling out"],
    ),
    "two-weights-for-one-gap": (
        {**TIS, "offpolicy": [{"type": "tis"}, {"type": "icepop"}]},
        ["tis and icepop would weigh the same gap twice"],
    ),
    "weights-of-a-cut-distribution": (
        {**TIS, "sampling": {"max_new_tokens": 4, "top_k": 2}},
        ["sampling.top_k with 'tis'", "leave one of them out"],
    ),
    "texts-between-pairs": (
        {**DPO, "lm_mix": {"data": ["ones"], "batch": 2}},
        ["lm_mix with objective 'dpo'", "leave lm_mix out"],
    ),
    "likelihood-twice": (
        {
            "advantage": {"type": "reward"},
            "objective": {"type": "rft"},
            "positive_nll": {},
        },
        ["positive_nll with objective 'rft'", "leave positive_nll out"],
    ),
    "covariances-of-nothing": (
        {"objective": {"type": "clip_cov", "low": 3.0, "high": 2.0}},
        ["low = 3.0 with high = 2.0", "raise high, or lower low"],
    ),
    "bound-below-the-clip": (
        {"objective": {"type": "ppo_clip", "clip_high": 0.5, "max_ratio": 1.2}},
        ["max_ratio = 1.2 is below 1 + clip_high = 1.5"],
    ),
    "range-that-is-empty": (
        {**TIS, "offpolicy": [{"type": "icepop", "low": 6.0}]},
        ["low = 6.0 is above high = 5.0"],
    ),
    "no-tokens": ({"tokens": {"fraction": 0.0}}, ["tokens.fraction = 0.0", "greater than 0"]),
}


@pytest.mark.parametrize("more, parts", REFUSED.values(), ids=REFUSED)
def test_what_does_not_go_together_is_refused_with_its_fix(more, parts):
    with pytest.raises(ValueError) as refused:
        parse(RlStage, STAGE | more)
    missing = [part for part in parts if part not in str(refused.value)]
    assert not missing, refused.value


ACCEPTED = {
    "one-greedy-baseline": {"samples": 1, "advantage": {"type": "remax"}},
    "one-fixed-baseline": {"samples": 1, "advantage": {"type": "fixed_baseline"}},
    "mask-by-the-sampler": {"offpolicy": [{"type": "opsm"}], "updates": 2},
    "mask-and-weights": {**TIS, "offpolicy": [{"type": "tis"}, {"type": "opsm"}]},
    "mask-of-a-cut-distribution": {
        "offpolicy": [{"type": "opsm"}],
        "sampling": {"max_new_tokens": 4, "top_k": 2},
    },
    "likelihood-of-the-preferred": {**DPO, "positive_nll": {}},
    "recomputed-for-a-kl-in-the-reward": {
        "old_logp": "recomputed",
        "objective": {"type": "reinforce"},
        "kl": {"coef": 0.1, "where": "reward"},
    },
    "recomputed-for-a-teacher": {
        "old_logp": "recomputed",
        "objective": {"type": "reinforce"},
        "advantage": {"type": "on_policy_distillation", "teacher": "base"},
    },
    "all-tokens": {"tokens": {"fraction": 1.0}},
}


@pytest.mark.parametrize("more", ACCEPTED.values(), ids=ACCEPTED)
def test_what_goes_together(more):
    stage = parse(RlStage, STAGE | more)
    assert stage.samples == more.get("samples", 4)


@pytest.mark.parametrize(
    "more, has_ref_logp, has_reference",
    [
        ({}, False, False),
        ({"kl": {"coef": 0.1}}, True, True),
        (DPO, True, True),
        ({"advantage": {"type": "fixed_baseline"}}, False, True),
        ({"advantage": {"type": "remax"}}, False, False),
    ],
    ids=["none", "kl", "dpo", "fixed-baseline", "remax"],
)
def test_starting_weights_are_kept_where_something_reads_them(more, has_ref_logp, has_reference):
    stage = parse(RlStage, STAGE | more)
    assert (stage.has_ref_logp, stage.has_reference) == (has_ref_logp, has_reference)


ODD = {
    "clip-range-on-policy": ('objective = { type = "gspo", clip_low = 0.1 }', "objective.clip_low"),
    "mask-on-policy": ('offpolicy = [{ type = "opsm" }]', "'opsm' leaves nothing out"),
}


@pytest.mark.parametrize("more, note", ODD.values(), ids=ODD)
def test_what_acts_only_off_policy_is_said(tmp_path, capsys, more, note):
    path = config(tmp_path, rl("rl", steps=2, more=f"updates = 2\n{more}"), data=ONES)
    assert note not in call(capsys, "train", path, "--dry-run")
    assert note in call(capsys, "train", path, "--dry-run", "stages.rl.updates=1")
    # Epochs take more updates on one batch too.
    overrides = ("stages.rl.updates=1", "stages.rl.epochs=2")
    assert note not in call(capsys, "train", path, "--dry-run", *overrides)


def test_texts_that_are_not_there_are_named(tmp_path, capsys):
    more = 'lm_mix = { data = ["one"], batch = 2 }'
    path = config(tmp_path, rl("rl", more=more), data=ONES)
    said = call(capsys, "train", path, "--dry-run", code=2)
    assert "stages.rl.lm_mix.data: no [[data]] is named 'one'; did you mean 'ones'?" in said
    shown = call(capsys, "train", path, "--dry-run", 'stages.rl.lm_mix.data=["ones"]')
    assert "texts mixed in         2 per optimizer step" in shown


GDPO = 'advantage = { type = "multi_reward_norm", weights = { math = 1.0, format = 0.5 } }'
GATE = 'shaping = [{ type = "format_gate" }]'
SHARE = 'shaping = [{ type = "language_consistency" }]'
FORMAT = '{ verifier = { type = "format" } }'
WEIGHTED = (
    'verifier = { type = "weighted", parts = [{ verifier = { type = "math_answer" }, name = '
    f'"math" }}, {FORMAT}] }}'
)
FIRST = (
    'verifier = { type = "first", cases = [{ sources = ["ones"], verifier = { type = "language", '
    'language = "en" } }, { verifier = { type = "format" } }] }'
)
EXACT = 'verifier = { type = "exact" }'
OPEN = 'verifier = { type = "command", argv = ["judge"] }'
PARTS_OF = "{ type = 'weighted', parts = [{ verifier = { type = "
UNREAD = {
    "gate-of-the-tasks-own": (GATE, "", "", "ones", "format"),
    "gate-of-one-verifier": (GATE, EXACT, WEIGHTED, "ones", "format"),
    "gate-of-some-sources": (GATE, WEIGHTED, "", "twos", "format"),
    "gate-of-another-case": (GATE, FIRST, FIRST, "ones", "format"),
    "share-of-no-source": (SHARE, WEIGHTED, WEIGHTED, "ones", "language"),
    "none-of-the-rewards": (GDPO, WEIGHTED, EXACT, "twos", "math"),
    "one-of-the-rewards": (GDPO, FIRST, FIRST, "ones", "math"),
}
READ = {
    "gate": (GATE, WEIGHTED, WEIGHTED),
    "share-of-some-sources": (SHARE, FIRST, FIRST),
    "rewards": (GDPO, WEIGHTED, WEIGHTED),
    "rewards-of-some-sources": (GDPO, WEIGHTED, FIRST),
    "what-cannot-be-known": (GATE, OPEN, OPEN),
}


def two_sources(folder, more, ones, twos):
    data = "".join(
        f'[[data]]\nname = "{name}"\ntype = "arithmetic"\ndigits = 1\n{verifier}\n'
        for name, verifier in (("ones", ones), ("twos", twos))
    )
    stage = rl("rl", more=more).replace('data = ["ones"]', 'data = ["ones", "twos"]')
    return config(folder, stage, data=data)


@pytest.mark.parametrize("more, ones, twos, source, component", UNREAD.values(), ids=UNREAD)
def test_components_that_no_verifier_gives_are_refused(
    tmp_path, more, ones, twos, source, component
):
    with pytest.raises(ValueError) as refused:
        load(RunConfig, [two_sources(tmp_path, more, ones, twos)], [])
    said = str(refused.value)
    what = "advantage: 'multi_" if more == GDPO else f"shaping: '{more.split(chr(34))[1]}"
    assert f"stages.rl.{what}" in said
    assert f"reads the component {component!r} of scores, and the verifier of source" in said
    assert f"source {source!r} gives none" in said
    assert f"data.{source}.verifier = {PARTS_OF}" in said and f"name = {component!r}" in said


@pytest.mark.parametrize("more, ones, twos", READ.values(), ids=READ)
def test_components_that_some_verifier_may_give_pass(tmp_path, more, ones, twos):
    assert len(load(RunConfig, [two_sources(tmp_path, more, ones, twos)], []).data) == 2


def test_texts_fit_the_row_and_the_context():
    mix = LmMix(data=("ones",), batch=2)
    assert [mix.longest(*sizes) for sizes in ((64, 16), (8, 16))] == [16, 8]
    assert LmMix(data=("ones",), batch=2, max_tokens=4).longest(64, 16) == 4


def test_arithmetic_counts_the_rounds_of_dynamic_sampling(tmp_path, capsys):
    path = config(tmp_path, rl("rl"), data=ONES)
    dynamic = "stages.rl.dynamic_sampling={ oversample = 1.6, max_rounds = 3 }"
    shown = call(capsys, "train", path, "--dry-run", dynamic)
    # 4 prompts x 1.6 are 7 in a round.
    assert "rollouts per step      4 prompts x 2 samples = 8" in shown
    assert "at most 3 rounds x 7 prompts x 2 samples = 42" in shown
    assert "completion tokens      at most 42 x 4 = 168 per step" in shown
    said = call(
        capsys, "train", path, "--dry-run", "stages.rl.dynamic_sampling.oversample=1e9", code=2
    )
    assert "dynamic_sampling.oversample" in said and "less than or equal to 100" in said
