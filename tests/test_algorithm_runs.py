"""Parts of algorithms in whole runs: what the config chooses is what trains."""

import json
import textwrap

import numpy as np
import pytest
from inprocess import config, rl, train

from jaxrl_vr.metrics.names import METRICS

DATA = """
[[data]]
name = "ones"
type = "arithmetic"
digits = 1
verifier = { type = "custom", path = "algorithm_verifier:judge" }
"""


@pytest.fixture(autouse=True)
def verifier(tmp_path, monkeypatch):
    (tmp_path / "algorithm_verifier.py").write_text(
        textwrap.dedent("""
        from jaxrl_vr.types import Score, Step

        def judge(example, response):
            right = response[:1] in set("13579+>")
            # The second character is a step of its own.
            steps = (Step(1, float(right)), Step(2, float(response[1:2] in set("02468"))))
            return Score(float(right), "right" if right else "wrong", steps=steps)
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)


def run(tmp_path, more, *overrides, steps=2):
    train(config(tmp_path, rl("rl", steps=steps, more=more), data=DATA), *overrides)
    run = tmp_path / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(set(step) - {"stage", "step"} <= set(METRICS) for step in lines)
    rollouts = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted((run / "stages/rl/rollouts").glob("*.jsonl"))
    ]
    return lines, rollouts


def test_online_dpo_trains_on_a_pair_of_each_group(tmp_path):
    more = """
objective = { type = "dpo", beta = 0.5 }
advantage = { type = "preference_pairs" }
weights = { type = "sequence_mean" }
"""
    steps, rollouts = run(tmp_path, more, "stages.rl.samples=4", steps=3)
    for lines in rollouts:
        for group in (lines[i : i + 4] for i in range(0, 16, 4)):
            adv = [line["advantage"] for line in group]
            values = {line["score"]["value"] for line in group}
            assert sorted(adv) == ([-1, 0, 0, 1] if len(values) == 2 else [0, 0, 0, 0])
    # Before the first update policy and reference agree: log 2 for each pair, which counts once.
    assert steps[0]["loss/total"] == pytest.approx(np.log(2), abs=1e-5)
    assert steps[0]["optimizer/grad_norm"] > 0
    assert steps[-1]["loss/total"] < steps[0]["loss/total"]
    assert {"dpo/accuracy", "dpo/margin"} <= set(steps[0])


def test_process_rewards_reach_the_tokens(tmp_path):
    steps, rollouts = run(tmp_path, 'advantage = { type = "process_group_norm" }')
    # A special token has no text, so it moves what is behind it.
    long = [
        line
        for line in rollouts[0]
        if len(line["text"]) > 2
        and line["num_tokens"] - len(line["text"]) == (line["finish"] == "stop")
    ]
    assert long
    for line in long:
        # Two characters, two tokens: what is behind the second step has no advantage.
        adv = line["advantage"]
        assert len(adv) == line["num_tokens"] and not any(adv[2:])
    assert any(line["advantage"][0] != line["advantage"][1] for line in long)
    assert steps[0]["optimizer/grad_norm"] > 0


def test_step_scores_as_reward(tmp_path):
    more = """
shaping = [{ type = "step_reward", reduce = "product" }]
advantage = { type = "reward" }
objective = { type = "rft" }
"""
    steps, rollouts = run(tmp_path, more)
    for line in rollouts[0]:
        first = line["text"][:1] in set("13579+>")
        second = line["text"][1:2] in set("02468")
        assert line["advantage"] == float(first and second)
    assert "policy/positive_nll" in steps[0]


def test_reinforce_plus_plus_with_kl_in_its_returns(tmp_path):
    more = """
objective = { type = "reinforce" }
advantage = { type = "reinforce_plus_plus" }
kl = { type = "k1", coef = 0.1, where = "reward" }
"""
    steps, rollouts = run(tmp_path, more, "stages.rl.samples=1", "stages.rl.prompts=16")
    adv = np.concatenate([line["advantage"] for line in rollouts[1]])
    assert adv.mean() == pytest.approx(0, abs=1e-5) and adv.std() == pytest.approx(1, abs=1e-3)
    # Tokens of one rollout differ by the KL that is still to come.
    assert any(len(set(line["advantage"])) > 1 for line in rollouts[1])
    assert abs(steps[1]["reward/kl"]) > 1e-5


def test_corrections_for_the_sampler_s_policy(tmp_path):
    more = """
old_logp = "recomputed"
offpolicy = [{ type = "tis", max_weight = 2.0 }, { type = "veto" }]
"""
    steps, _ = run(tmp_path, more)
    # Sampler and learner agree, so that every weight is 1 and nothing is cut.
    assert steps[0]["offpolicy/weight"] == pytest.approx(1, abs=1e-4)
    assert steps[0]["offpolicy/cut_frac"] == 0


def test_entropy_bonus_follows_its_target(tmp_path):
    more = "entropy_bonus = { coef = 0.0, adaptive = { target = 100.0, step = 0.25 } }"
    steps, _ = run(
        tmp_path, more, "stages.rl.prompts=1", "stages.rl.control=shuffled_rewards", steps=3
    )
    plain = tmp_path / "plain"
    plain.mkdir()
    without, _ = run(
        plain, "", "stages.rl.prompts=1", "stages.rl.control=shuffled_rewards", steps=3
    )
    # The coefficient starts at 0 and rises by 0.25 a step while the entropy is below its target.
    assert steps[0]["loss/total"] == pytest.approx(without[0]["loss/total"], abs=1e-6)
    difference = steps[1]["loss/total"] - without[1]["loss/total"]
    assert difference == pytest.approx(-0.25 * steps[1]["policy/entropy"], rel=1e-3)


def test_a_penalty_in_the_loss_has_its_coefficient(tmp_path):
    more = "kl = { coef = 0.5 }\nupdates = 2"
    steps, _ = run(tmp_path, more)
    assert steps[1]["policy/kl"] > 0
    assert "reward/kl" not in steps[1]


def test_truncated_rollouts_count_but_do_not_train(tmp_path):
    steps, rollouts = run(tmp_path, 'shaping = [{ type = "truncated_mask" }]')
    cut = [line for line in rollouts[0] if line["finish"] == "length"]
    assert cut and steps[0]["length/truncated_rate"] > 0
    # All tokens that train are those of rollouts that stopped by themselves.
    assert any(line["advantage"] != 0 for line in cut)


def test_remax_compares_with_the_greedy_answer(tmp_path):
    steps, rollouts = run(tmp_path, 'advantage = { type = "remax" }', "stages.rl.prompts=8")
    for step, lines in zip(steps, rollouts, strict=True):
        # The baseline is one answer's value, the same for both samples of a prompt.
        baseline = [line["score"]["value"] - line["advantage"] for line in lines]
        assert set(baseline) <= {0.0, 1.0}
        assert baseline[::2] == baseline[1::2]
        assert step["reward/baseline"] == pytest.approx(np.mean(baseline), abs=1e-6)
    # Untrained, the model gives every prompt of one length nearly the same greedy answer, and it
    # never is the mean of the group.
    assert any(line["advantage"] for line in rollouts[0])


def test_remax_of_one_sample(tmp_path):
    steps, rollouts = run(
        tmp_path, 'advantage = { type = "remax" }', "stages.rl.samples=1", "stages.rl.prompts=16"
    )
    assert len(rollouts[0]) == 16 and steps[0]["optimizer/grad_norm"] > 0


def test_fixed_baseline_is_the_mean_reward_of_the_starting_weights(tmp_path):
    more = 'advantage = { type = "fixed_baseline", samples = 8 }'
    steps, rollouts = run(tmp_path, more, "stages.rl.prompts=8", steps=3)
    for step, lines in zip(steps, rollouts, strict=True):
        baseline = np.array([line["score"]["value"] - line["advantage"] for line in lines])
        assert set(baseline * 8) <= set(range(9))
        assert step["reward/baseline"] == pytest.approx(baseline.mean(), abs=1e-6)
    # About half of the first characters are right at the start; the policy rises above that.
    assert steps[0]["reward/baseline"] == pytest.approx(0.5, abs=0.2)
    mean = np.mean([step["reward/baseline"] for step in steps])
    assert steps[-1]["reward/mean"] > mean
    # No reference is scored where nothing compares with its log-probs.
    assert "policy/kl" not in steps[0]


def test_a_prompt_whose_baseline_cannot_be_scored_does_not_train(tmp_path, monkeypatch):
    (tmp_path / "greedy_verifier.py").write_text(
        textwrap.dedent("""
        from jaxrl_vr.types import Score

        def judge(example, response):
            if len(response) % 2:
                return Score(0.0, "unscorable", reason="odd")
            return Score(1.0, "right")
        """)
    )
    more = 'advantage = { type = "remax" }'
    data = DATA.replace("algorithm_verifier", "greedy_verifier")
    train(config(tmp_path, rl("rl", steps=1, more=more), data=data), "stages.rl.prompts=16")
    lines = (tmp_path / "run/stages/rl/rollouts/step-000001.jsonl").read_text().splitlines()
    # Right answers have value 1, and so has every baseline that could be scored.
    assert all(json.loads(line)["advantage"] == 0 for line in lines)


def test_missing_step_scores_are_said_once(tmp_path, capsys):
    custom = 'type = "custom", path = "algorithm_verifier:judge"'
    data = DATA.replace(custom, 'type = "exact", after = ">"')
    more = 'advantage = { type = "process_group_norm" }'
    train(config(tmp_path, rl("rl", steps=2, more=more), data=data))
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("no answer of this step has scores of its steps") == 1


def test_right_rollouts_are_imitated_beside_the_loss(tmp_path):
    plain = tmp_path / "plain"
    plain.mkdir()
    without, _ = run(plain, "", steps=1)
    steps, rollouts = run(tmp_path, "positive_nll = { coef = 0.5 }", steps=1)
    # The same rollouts, whose loss grows by half of the mean over the right ones' tokens.
    added = steps[0]["loss/total"] - without[0]["loss/total"]
    assert added == pytest.approx(0.5 * steps[0]["policy/positive_nll"], rel=1e-4)
    assert any(line["score"]["verdict"] == "right" for line in rollouts[0])
    assert 1 < steps[0]["policy/positive_nll"] < np.log(18)  # a random model's, of 18 ids
    assert "lm/nll" not in steps[0]


LM_MIX = """
updates = 2
lm_mix = { data = ["texts"], batch = 3, coef = 0.1 }
"""
TEXTS = """
[[data]]
name = "texts"
type = "arithmetic"
digits = 1
"""


def mixed(folder, steps, *overrides):
    """A run with texts mixed in: its summary, and its steps."""
    summary = train(
        config(folder, rl("rl", steps=steps, more=LM_MIX), data=DATA + TEXTS), *overrides
    )
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return summary, [json.loads(line) for line in lines]


def test_texts_are_mixed_in_and_learned(tmp_path):
    _, steps = mixed(tmp_path, 6, "stages.rl.lm_mix.coef=10.0", "stages.rl.lm_mix.batch=16")
    # An untrained model gives the 18 ids nearly the same probability; then the texts gain.
    assert steps[0]["lm/nll"] == pytest.approx(np.log(18), abs=0.4)
    assert steps[-1]["lm/nll"] < 0.8 * steps[0]["lm/nll"]


def test_a_resumed_run_mixes_in_the_texts_that_come_next(tmp_path, capsys):
    every = "checkpoint.every=1"
    whole, _ = mixed(tmp_path, 4, every)
    other = tmp_path / "other"
    other.mkdir()
    mixed(other, 2, every)
    (other / "run/stages/rl/result.json").unlink()
    resumed, steps = mixed(other, 4, every)
    assert "resuming rl at step 2 of 4" in capsys.readouterr().out
    assert len(steps) == 4
    assert resumed["parameter_hash"] == whole["parameter_hash"]


def test_critic_and_reference_beside_texts(tmp_path):
    more = (
        LM_MIX
        + """
advantage = { type = "gae" }
kl = { coef = 0.1 }
critic = { optimizer = { type = "adamw", learning_rate = 1e-2 }, warmup_steps = 1 }
positive_nll = {}
"""
    )
    path = config(tmp_path, rl("rl", steps=2, more=more), data=DATA + TEXTS)
    train(path)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines)
    assert "lm/nll" not in first and {"lm/nll", "policy/positive_nll", "policy/kl"} <= set(second)
    assert second["optimizer/skipped"] == second["critic/skipped"] == 0


def test_only_tokens_of_high_entropy_train(tmp_path):
    # Two updates, so that the second is not on policy: what has no weight has no gradient there.
    steps, _ = run(tmp_path, 'tokens = { type = "top_entropy", fraction = 0.2 }\nupdates = 2')
    assert steps[0]["optimizer/grad_norm"] > 0
    everything = tmp_path / "everything"
    everything.mkdir()
    all_tokens, _ = run(
        everything, 'tokens = { type = "top_entropy", fraction = 1.0 }\nupdates = 2'
    )
    plain = tmp_path / "plain"
    plain.mkdir()
    without, _ = run(plain, "updates = 2")
    assert all_tokens[1]["loss/total"] == pytest.approx(without[1]["loss/total"], abs=1e-6)
    assert steps[0]["optimizer/grad_norm"] != pytest.approx(without[0]["optimizer/grad_norm"], 1e-3)


def test_clip_cov_leaves_out_tokens_of_high_covariance(tmp_path):
    more = 'objective = { type = "clip_cov", low = 0.0, high = 100.0, fraction = 0.25 }'
    steps, _ = run(tmp_path, more, "stages.rl.prompts=8")
    for step in steps:
        # A quarter of the tokens, as far as so many have a covariance above 0.
        assert 0 < step["policy/selected_frac"] <= 0.25
        assert step["policy/clip_frac"] == pytest.approx(step["policy/selected_frac"], abs=1e-6)
    assert steps[0]["policy/selected_frac"] > 0.15


def test_kl_cov_holds_back_the_tokens_of_highest_covariance(tmp_path):
    more = 'objective = { type = "kl_cov", coef = 1.0, fraction = 0.25 }\nupdates = 2'
    steps, _ = run(tmp_path, more, "stages.rl.prompts=8")
    for step in steps:
        assert step["policy/selected_frac"] == pytest.approx(0.25, abs=0.05)
    assert steps[0]["policy/ratio_max"] > 1


def test_what_is_selected_does_not_depend_on_micro_batches(tmp_path):
    found = []
    for rows in (8, 16):
        folder = tmp_path / str(rows)
        folder.mkdir()
        more = f"""
objective = {{ type = "clip_cov", low = 0.0, high = 100.0, fraction = 0.25 }}
micro = {{ rows = {rows}, row_length = 16 }}
"""
        steps, _ = run(folder, more, "stages.rl.prompts=16")
        found.append([(s["policy/selected_frac"], s["optimizer/grad_norm"]) for s in steps])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


def test_off_policy_sequence_mask(tmp_path):
    more = 'offpolicy = [{ type = "opsm", delta = 1e-3 }]\nupdates = 4'
    steps, _ = run(tmp_path, more, "stages.rl.optimizer.learning_rate=0.1", steps=3)
    # The first update of a step is on policy and masks nothing, so at most three quarters are.
    assert 0 < max(step["offpolicy/opsm_frac"] for step in steps) < 0.75
