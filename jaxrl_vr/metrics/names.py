"""The names of metrics and what each is: the mask it is over, and what its mean divides by.

Masks: "trained tokens" are those with mask true, i.e. sampled ones of rollouts that train;
"scored rollouts" leave out the unscorable; "sampled tokens" are those the model chose itself.
"""

METRICS: dict[str, str] = {
    "reward/mean": "mean value of the scored rollouts",
    "reward/accuracy": "share of the scored rollouts with verdict right",
    "reward/no_answer": "share of the scored rollouts with verdict no_answer",
    "reward/unscorable": "share of all rollouts with verdict unscorable: a fault of ours",
    "length/mean": "completion tokens of a rollout, the EOS included, over the scored ones",
    "length/max": "the same, the largest over all rollouts",
    "length/right": "completion tokens of a rollout, over those with verdict right",
    "length/wrong": "completion tokens of a rollout, over the scored ones that are not right",
    "length/truncated_rate": "share of the scored rollouts that a length limit cut",
    "efficiency/accuracy_per_kilotoken": "right answers per 1000 completion tokens, of scored ones",
    "group/all_right": "share of the groups in which every scored rollout is right",
    "group/all_wrong": "share of the groups in which no scored rollout is right",
    "group/mixed": "share of the groups with right and other rollouts: those with a signal",
    "group/kept": "share of the sampled groups that train, with dynamic sampling",
    "rollout/rounds": "rounds of sampling in a step, with dynamic sampling",
    "policy/entropy": "entropy of the next-token distribution in nats, mean over trained tokens",
    "policy/kl": "k3 estimate of the KL to the reference in nats, mean over trained tokens",
    "policy/approx_kl": "k3 estimate of the KL to the old policy in nats, over trained tokens",
    "policy/kept_mass": "probability that top-k, top-p or min-p kept, mean over sampled tokens",
    "policy/clip_frac": "share of the trained tokens whose gradient the clip removed",
    "policy/ratio_max": "largest probability ratio to the old policy, over trained tokens",
    "loss/total": "loss of an optimizer step: sum over trained tokens of weight x loss",
    "sft/nll": "negative log-likelihood in nats, mean over trained tokens",
    "mismatch/mean": "|log-prob of the learner - of the sampler|, mean over trained tokens",
    "mismatch/max": "the same, the largest over trained tokens",
    "optimizer/grad_norm": "global norm of the gradient before clipping, mean over updates",
    "optimizer/grad_norm_max": "the same, the largest of the step's updates",
    "optimizer/learning_rate": "learning rate, mean over the step's updates",
    "optimizer/skipped": "share of the step's updates that were skipped as not finite",
    "speed/rollout_s": "seconds of sampling and of waiting for verifiers",
    "speed/update_s": "seconds of updating",
    "speed/eval_s": "seconds of evaluating, in the step that follows it",
    "speed/rollout_tokens_per_s": "completion tokens per second of sampling",
    "speed/update_tokens_per_s": "tokens of the batch, prompts too, per second of updating",
    "speed/eval_tokens_per_s": "completion tokens per second of evaluating",
    "time/step_s": "seconds of a step, evaluations and checkpoints left out",
}
