"""Sampling and verifying at the same time."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.data.prompts import Prompt
from jaxrl_vr.rollout.collect import collect, prompt_words
from jaxrl_vr.sampler.fakes import UniformEngine
from jaxrl_vr.types import Example, Sampling, Score

SAMPLING = Sampling(max_new_tokens=12, stop_ids=(0,))


class SlowScorer:
    """Verdicts in any order, some polls after the response came in."""

    def __init__(self, engine, seed=0):
        self._engine = engine
        self._random = random.Random(seed)
        self._jobs = []
        self.seen = []  # (job, example, response)
        self.overlapped = 0

    @property
    def pending(self):
        return len(self._jobs)

    def submit(self, job, example, response):
        self.seen.append((job, example, response))
        self.overlapped += self._engine.num_unfinished > 0
        self._jobs.append((job, Score(len(response), "right", reason=f"{example.id}:{response}")))

    def poll(self, timeout=0.0):
        assert timeout == 0 or self._engine.num_unfinished == 0  # decoding never waits
        self._random.shuffle(self._jobs)
        keep = self._random.randrange(len(self._jobs) + 1)
        self._jobs, ready = self._jobs[:keep], self._jobs[keep:]
        return ready


def decode(token_ids):
    return " ".join(map(str, token_ids))


def prompts(ids, source="s"):
    return [Prompt(Example(i, f"{i}?", source=source), (1, 2, 3)) for i in ids]


def run(ids, n=3, *, seed=0, key=(0, 5), slots=3, prompts=prompts):
    engine = UniformEngine(16, slots=slots, steps_per_call=2)
    scorer = SlowScorer(engine, seed)
    calls = []
    groups = collect(
        engine,
        scorer,
        prompts(ids),
        n,
        SAMPLING,
        key=key,
        decode=decode,
        progress=lambda sampled, verified: calls.append((sampled, verified)),
    )
    return groups, scorer, calls


def test_waits_for_verifiers_are_told():
    engine = UniformEngine(16, slots=3, steps_per_call=2)
    scorer = SlowScorer(engine)
    polled, inside, outside = scorer.poll, [], []

    class Waiting:
        def __enter__(self):
            inside.append(scorer.pending)

        def __exit__(self, *_):
            inside.append(scorer.pending)

    def poll(timeout=0.0):
        outside.append((timeout, len(inside) % 2))
        return polled(timeout)

    scorer.poll = poll
    collect(
        engine, scorer, prompts(["a", "b"]), 3, SAMPLING, key=(0, 5), decode=decode, waiting=Waiting
    )
    # Open around each submission, and around each poll that may wait: those after the last token.
    submitted = sum(
        after == before + 1 for before, after in zip(inside[::2], inside[1::2], strict=True)
    )
    waited = [timeout for timeout, is_open in outside if is_open]
    assert submitted == 6 and len(inside) == 2 * (6 + len(waited))
    assert all((timeout > 0) == is_open for timeout, is_open in outside)


def tokens(groups):
    return {g.example.id: [r.token_ids for r in g.rollouts] for g in groups}


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_every_rollout_is_scored_once_and_stands_in_its_group(num_prompts, n, slots, seed):
    ids = [f"p{i}" for i in range(num_prompts)]
    groups, scorer, calls = run(ids, n, seed=seed, slots=slots)
    assert [g.example.id for g in groups] == ids
    assert sorted(job for job, _, _ in scorer.seen) == list(range(num_prompts * n))
    for p, group in enumerate(groups):
        assert [r.id for r in group.rollouts] == list(range(p * n, (p + 1) * n))
        for rollout in group.rollouts:
            # The score is that of this rollout's own text and example.
            text = decode(rollout.token_ids)
            assert rollout.score == Score(len(text), "right", reason=f"{ids[p]}:{text}")
    assert calls == sorted(calls)
    assert calls[-1] == (num_prompts * n, num_prompts * n)
    assert all(verified <= sampled for sampled, verified in calls)


def test_verifying_starts_while_others_decode():
    _, scorer, calls = run([f"p{i}" for i in range(8)])
    assert scorer.overlapped > 0
    assert any(0 < verified < 24 for _, verified in calls)


def test_completions_keep_their_end():
    groups, _, _ = run([f"p{i}" for i in range(8)])
    rollouts = [r for g in groups for r in g.rollouts]
    assert {r.finish for r in rollouts} == {"stop", "length"}
    for r in rollouts:
        assert (r.token_ids[-1] == 0) == (r.finish == "stop")
        assert 0 not in r.token_ids[:-1]
        assert len(r.token_ids) == len(r.logp) <= 12


def test_samples_depend_on_the_example_and_not_on_its_place():
    there = tokens(run(["a", "b", "c"])[0])
    back = tokens(run(["c", "x", "b", "a"], slots=2, seed=9)[0])
    assert all(there[i] == back[i] for i in "abc")


def test_samples_of_a_group_of_prompts_of_steps_and_of_seeds_differ():
    groups = tokens(run(["a", "b"])[0])
    completions = [c for g in groups.values() for c in g]
    for key in ((0, 6), (1, 5)):
        completions += [c for g in tokens(run(["a", "b"], key=key)[0]).values() for c in g]
    other = tokens(run(["a", "b"], prompts=lambda ids: prompts(ids, source="t"))[0])
    completions += [c for g in other.values() for c in g]
    assert len(set(completions)) == 24  # 4 x 2 prompts x 3 samples


def test_more_samples_keep_the_first_ones():
    few, many = tokens(run(["a", "b"], n=2)[0]), tokens(run(["a", "b"], n=4)[0])
    assert all(many[i][:2] == few[i] for i in "ab")


def test_a_prompt_twice_in_a_batch_is_sampled_anew():
    groups, _, _ = run(["a", "b", "a"])
    first, second = groups[0].rollouts, groups[2].rollouts
    assert not {r.token_ids for r in first} & {r.token_ids for r in second}
    alone = tokens(run(["a"])[0])["a"]
    assert [r.token_ids for r in first] == alone


def test_prompt_words():
    words = prompt_words(prompts(["a", "b", "a"]) + prompts(["a"], source="t"))
    assert len(set(words)) == 4
    assert all(0 <= word < 2**32 for word in words)
    assert prompt_words(prompts(["b", "a"])) == [words[1], words[0]]


def test_no_prompts():
    assert run([])[0] == []


def test_an_interruption_passes_through():
    engine = UniformEngine(16, slots=2, steps_per_call=2)

    def stop(sampled, verified):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(
            engine,
            SlowScorer(engine),
            prompts(["a"]),
            2,
            SAMPLING,
            key=(0, 0),
            decode=decode,
            progress=stop,
        )
