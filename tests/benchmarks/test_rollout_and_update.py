"""The benchmark on a tiny model: its lines, and that the limit counts the products it should."""

import json
import math

import jax
import pytest

from jaxrl_vr.models.architecture import Architecture
from jaxrl_vr.models.params import declare, is_param

SIZES = dict(width=16, layers=2, heads=4, kv_heads=2, head_dim=6, ffn=24, max_length=512)


@pytest.fixture
def benchmark(module):
    return module("rollout_and_update")


def test_prints_a_line_each_for_rollout_and_update(benchmark, folder, capsys):
    sizes = ["--prompts", "9", "--samples", "2", "--new", "5", "--repeats", "2"]
    benchmark.main(["--model", str(folder), *sizes])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["benchmark"] for line in lines] == ["rollout", "update"]
    for line in lines:
        numbers = ["tokens_per_s", "limit_tokens_per_s", "ratio_to_limit", "first_call_s"]
        for name in [*numbers, "peak_memory_bytes"]:
            assert math.isfinite(line[name]) and line[name] > 0, name
        ratio = line["tokens_per_s"] / line["limit_tokens_per_s"]
        assert line["ratio_to_limit"] == pytest.approx(ratio, rel=1e-6)
        for name in ("seconds", "limit_seconds"):
            assert len(line[name]) == 2 and min(line[name]) > 0
        assert line["tokens_per_s"] == pytest.approx(2 * line["tokens"] / sum(line["seconds"]))
        assert line["load_average"] >= 0
        assert line["machine"]["cores"] >= 1 and line["machine"]["backend"] == "cpu"
        assert line["machine"]["memory_bytes"] > 2**20
        assert line["versions"]["jax"] == jax.__version__
        assert line["settings"]["model"] == "tiny"
    rollout, update = lines
    assert rollout["tokens"] == 9 * 2 * 5
    # Characters of the questions, twice each; the ninth is the first one with its number before it.
    prompts = [*benchmark.QUESTIONS, "9. " + benchmark.QUESTIONS[0]]
    assert update["tokens"] == 2 * sum(len(p) + 5 for p in prompts)
    assert update["settings"]["row_length"] == max(map(len, prompts)) + 5
    assert update["settings"]["rows"] == 8


def struct(*shape):
    """An array that is known but not there."""
    return jax.ShapeDtypeStruct(shape, "float32")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_limit_multiplies_with_every_matrix_once(benchmark, tied):
    arch = Architecture(vocab_size=40, tied=tied, **SIZES)
    matrices = [p for p in jax.tree.leaves(declare(arch)["layers"], is_leaf=is_param) if p.scale]
    of_layers = sum(math.prod(p.shape) for p in matrices)
    shapes = benchmark.product_shapes(arch).values()
    assert arch.layers * sum(i * o for i, o in shapes) == of_layers

    layer = {name: struct(*shape) for name, shape in benchmark.product_shapes(arch).items()}
    arrays = struct(3, 16), [layer] * arch.layers, struct(40, 16)
    flops = benchmark.decode_products.lower(*arrays).cost_analysis()["flops"]
    assert flops == pytest.approx(2 * 3 * (of_layers + 40 * 16))

    inputs = {name: struct(5, w.shape[0]) for name, w in layer.items()}
    grads = {name: struct(5, w.shape[1]) for name, w in layer.items()}
    flops = benchmark.layer_products.lower(inputs, layer, grads).cost_analysis()["flops"]
    assert flops == pytest.approx(3 * 2 * 5 * of_layers / arch.layers)
    arrays = struct(5, 16), struct(40, 16), struct(5, 40)
    assert benchmark.head_products.lower(*arrays).cost_analysis()["flops"] == 3 * 2 * 5 * 40 * 16


def test_measure_takes_turns_and_counts_the_first_call_apart(benchmark):
    calls = []

    def limit():
        calls.append("limit is made")

        def seconds():
            calls.append("limit")
            return 0.5 * len([c for c in calls if c == "limit"])

        return seconds

    timing, last = benchmark.measure(60, lambda i: calls.append(i) or i, limit, 3)
    assert calls == [0, "limit is made", "limit", 1, "limit", 2, "limit", 3, "limit"]
    assert last == 3
    assert timing.limit_seconds == [1.0, 1.5, 2.0]  # 0.5 was the call that compiles
    timing = timing._replace(seconds=[3.0, 100.0, 2.0])
    line = timing.line("rollout")
    assert line["tokens_per_s"] == 20.0  # 60 tokens in the median of 3 s
    assert line["limit_tokens_per_s"] == 40.0
    assert line["ratio_to_limit"] == 0.5


def test_prompts_differ_and_repeat_with_a_number(benchmark, folder):
    tokenizer = benchmark.HFTokenizer(folder)
    prompts = benchmark.prompts_of(tokenizer, 20)
    assert len({tuple(p) for p in prompts}) == 20
    assert tokenizer.decode(prompts[16]) == "17. " + benchmark.QUESTIONS[0]


def test_refuses_counts_below_one(benchmark, folder, capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["--model", str(folder), "--new", "0"])
    assert "--new: 0: give at least 1" in capsys.readouterr().err
