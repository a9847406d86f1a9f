"""`generate`: whole groups, in sample order, from any engine."""

import pytest

from jaxrl_vr.sampler.fakes import UniformEngine
from jaxrl_vr.sampler.generate import generate
from jaxrl_vr.types import Sampling

PROMPTS = [(1, 2), (3,), (4, 5, 6)]
SAMPLING = Sampling(max_new_tokens=20, stop_ids=(0,))


def groups(engine, prompts=PROMPTS, n=5, sampling=SAMPLING, key=(0, 0)):
    return list(generate(engine, prompts, n, sampling, key))


def test_yields_each_prompt_once_with_its_samples_in_order():
    engine = UniformEngine(1000)
    got = groups(engine)
    assert sorted(p for p, _ in got) == [0, 1, 2]
    for p, rollouts in got:
        assert [r.prompt_ids for r in rollouts] == [PROMPTS[p]] * 5
        assert [r.id for r in rollouts] == [p * 5 + g for g in range(5)]
        assert len({r.token_ids for r in rollouts}) == 5
    assert engine.num_unfinished == 0


def test_yields_in_the_order_the_groups_finish():
    engine = UniformEngine(1000, slots=6, steps_per_call=1)
    done = []
    lengths = {}
    for p, rollouts in generate(engine, PROMPTS, 2, Sampling(6, stop_ids=tuple(range(8))), (0, 0)):
        done.append(p)
        lengths[p] = max(len(r.token_ids) for r in rollouts)
    assert [lengths[p] for p in done] == sorted(lengths.values())


def test_the_key_decides():
    first, again = groups(UniformEngine(10)), groups(UniformEngine(10, slots=2, steps_per_call=7))
    assert sorted(first) == sorted(again)
    seeds = [dict(groups(UniformEngine(10), key=key)) for key in ((0, 0), (1, 0), (0, 1))]
    texts = [seed[p][g].token_ids for seed in seeds for p in range(3) for g in range(5)]
    assert len(set(texts)) > 40  # of 45; short ones may agree


def test_the_same_prompt_twice_is_two_groups():
    got = dict(groups(UniformEngine(10), prompts=[(1, 2), (1, 2)]))
    assert {r.token_ids for r in got[0]}.isdisjoint({r.token_ids for r in got[1]})


def test_a_group_is_kept_whole_when_one_of_it_is_aborted():
    engine = UniformEngine(10, slots=2)
    stream = generate(engine, PROMPTS, 3, SAMPLING, (0, 0))
    p, _ = next(stream)
    engine.abort([r for r in range(9) if r // 3 != p])
    rest = dict(stream)
    assert sorted([p, *rest]) == [0, 1, 2]
    assert all(len(rollouts) == 3 for rollouts in rest.values())


@pytest.mark.parametrize(
    ("prompts", "n", "message"),
    [
        ([], 2, "generate: 0 prompts x n = 2"),
        (PROMPTS, 0, "generate: 3 prompts x n = 0"),
        ([(1,), ()], 2, "request 2: the prompt is empty"),
    ],
)
def test_refuses_nothing_to_do(prompts, n, message):
    with pytest.raises(ValueError, match=message):
        groups(UniformEngine(10), prompts=prompts, n=n)


def test_greedy_groups_of_a_model_are_alike_and_share_one_prefill(engine, small, make_request):
    before = engine.counters.prefilled_prompts
    got = dict(groups(engine, n=4, sampling=Sampling(6, temperature=0.0)))
    assert engine.counters.prefilled_prompts - before == 3
    for p, rollouts in got.items():
        expected = small.slow(make_request(0, PROMPTS[p], limit=6, temperature=0.0, stop_ids=()))
        assert [r.token_ids for r in rollouts] == [tuple(expected[0])] * 4


def test_generate_that_is_closed_early_leaves_the_engine_empty():
    engine = UniformEngine(5, slots=2)
    groups = generate(engine, [(1,), (2,), (3,)], 2, Sampling(max_new_tokens=8), (0, 0))
    next(groups)
    groups.close()
    assert engine.num_unfinished == 0
    assert len(list(generate(engine, [(1,)], 2, Sampling(max_new_tokens=8), (0, 0)))) == 1
