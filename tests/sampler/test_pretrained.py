"""The gap between sampler and learner on a real pretrained model."""

import jax
import numpy as np
import pytest
from pretrained import smollm2

from jaxrl_vr.data.tokenizer import HFTokenizer
from jaxrl_vr.models import hf
from jaxrl_vr.models.transformer import Transformer
from jaxrl_vr.rollout.batch import Shape, Trajectory, build, unpack
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.sampler.generate import generate
from jaxrl_vr.sampler.sizes import EngineConfig
from jaxrl_vr.sharding import TRAIN_RULES, to_host
from jaxrl_vr.train.update import Scorer, policy_score
from jaxrl_vr.types import Sampling

TEXTS = "The capital of France is", "def add(a, b):\n    return"
NEW = 380


@pytest.mark.slow
def test_smollm2_samples_with_the_learners_log_probs(one_device):
    folder = hf.locate(smollm2())
    arch, params = hf.load(folder, rules=TRAIN_RULES, mesh=one_device)
    model, tokenizer = Transformer(arch), HFTokenizer(folder)
    engine = SlotEngine(model, params, EngineConfig(slots=4), one_device)
    prompts = [tokenizer.prompt_ids(text) for text in TEXTS]
    groups = generate(engine, prompts, 2, Sampling(max_new_tokens=NEW), (0, 0))
    rollouts = [rollout for _, of_prompt in groups for rollout in of_prompt]
    every = []
    for rollout in rollouts:
        ids = np.array(rollout.prompt_ids + rollout.token_ids)
        every.append(Trajectory(ids, np.arange(len(ids)) >= len(rollout.prompt_ids)))
    shape = Shape(max(len(t.token_ids) for t in every), len(every))
    batch = build(every, np.ones(len(every), np.float32), shape)
    scores = to_host(Scorer(policy_score(model), one_device)(params, jax.device_put(batch)))
    of_learner = unpack(scores["logp"], every, shape)
    gaps = [
        np.abs(np.array(rollout.logp) - logp[len(rollout.prompt_ids) :])
        for rollout, logp in zip(rollouts, of_learner, strict=True)
    ]
    gap = np.concatenate(gaps)
    print(f"{len(gap)} tokens, gap at most {gap.max():.1e}, mean {gap.mean():.1e}")
    assert len(gap) == 4 * NEW
    assert gap.max() <= 2e-4
    assert gap.mean() <= 2e-5
