"""Three settings of the sampler's benchmark: full slots, drawn lengths, long shared prompts.

Times are of whole rollouts, prefill included, from an empty cache. The limit is the time that the
same process needs for nothing but the decode steps' products with the weights.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.machine import load_average, machine
from benchmarks.peers import Job, Peer, started
from benchmarks.rollout_and_update import prompts_of
from benchmarks.sampler_limits import (
    Cached,
    Lazily,
    attention_limit,
    medians,
    take_turns,
    weights_limit,
)
from benchmarks.sampler_runs import Loaded, Runs, line, on_chip, requests_of, weight_sync
from jaxrl_vr.data.tokenizer import HFTokenizer
from jaxrl_vr.sampler.endings import Endings
from jaxrl_vr.sampler.engine import SlotEngine
from jaxrl_vr.sampler.scheduler import Live
from jaxrl_vr.types import Request, Rollout


@dataclasses.dataclass(frozen=True)
class Full:
    """Every prompt and sample in a slot of its own, all answers as long."""

    prompts: int = 8
    samples: int = 8
    new: int = 128


@dataclasses.dataclass(frozen=True)
class Drawn:
    """More rollouts than slots, of lengths that the scheduler does not know."""

    prompts: int = 16
    rollouts: int = 128
    slots: int = 32
    mean: int = 40
    limit: int = 512
    seed: int = 0

    def lengths(self) -> list[int]:
        """New tokens of each rollout: geometric, cut at the limit."""
        drawn = np.random.default_rng(self.seed).geometric(1 / self.mean, self.rollouts)
        return np.minimum(drawn, self.limit).tolist()


@dataclasses.dataclass(frozen=True)
class Long:
    """Long prompts that their samples share."""

    prompts: int = 8
    prompt_tokens: int = 1500
    samples: int = 16
    new: int = 64


class EndsAt(SlotEngine):
    """Ends each request at a length that its scheduler is not told.

    A model does not stop at lengths that were drawn. Here the limit that is checked on the device
    for each token is the drawn length, while scheduler and cache go on expecting the request's own:
    such an end costs what a stop id costs.
    """

    lengths: Mapping[int, int] = {}  # by id of the request

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._endings = _Drawn(self)


class _Drawn(Endings):
    """The ends of an `EndsAt`."""

    def __init__(self, engine: EndsAt):
        super().__init__(None, 0)
        self._engine = engine

    def limit(self, live: Live) -> int:
        return self._engine.lengths[live.request.id]

    def stop(self, live: Live, searched: int) -> int | None:
        length = self.limit(live)
        return length if len(live.token_ids) == length else None


def full(loaded: Loaded, setting: Full, repeats: int, pythons: Mapping[str, str]) -> dict[str, Any]:
    """Setting 1: the limit is that of the decode steps alone, and prefill is in the time."""
    prompts = prompts_of(loaded.tokenizer, setting.prompts)
    slots, new, arch = setting.prompts * setting.samples, setting.new, loaded.model.arch
    runs = Runs(loaded.engine(slots), requests_of(prompts, setting.samples, new))
    lengths = [[new] * setting.samples] * setting.prompts
    load_before = load_average()
    with started(pythons, _job(loaded, prompts, lengths, slots)) as (peers, skipped):
        seconds = take_turns(
            {"ours": runs, "limit": weights_limit(arch, slots, new, loaded.model.dtype), **peers},
            repeats,
        )
        of_peers = against_peers(peers, skipped, seconds, slots * new)
    _check_lengths(runs.rollouts, [new] * slots)
    cached = Cached(setting.prompts, _mean(prompts), new / 2)
    return {
        **line(loaded, 1, setting, slots * new, seconds, prompts),
        **runs.line(),
        **on_chip(loaded, slots, cached, slots * new, seconds["ours"]),
        "weight_sync_s": weight_sync(runs.engine, loaded.params),
        **of_peers,
        "load_average": load_before,
    }


def drawn(
    loaded: Loaded, setting: Drawn, repeats: int, pythons: Mapping[str, str]
) -> dict[str, Any]:
    """Setting 2: the same slots with all lengths at the mean are sampled in turn."""
    prompts = prompts_of(loaded.tokenizer, setting.prompts)
    samples, arch = setting.rollouts // setting.prompts, loaded.model.arch
    wanted, equal = setting.lengths(), [setting.mean] * setting.rollouts
    engine = loaded.engine(setting.slots, EndsAt)
    assert isinstance(engine, EndsAt)
    make = requests_of(prompts, samples, setting.limit)

    def of_length(lengths: Sequence[int]) -> Runs:
        def requests(number: int) -> list[Request]:
            engine.lengths = dict(enumerate(lengths))
            return make(number)

        return Runs(engine, requests)

    runs, at_mean = of_length(wanted), of_length(equal)
    steps = sum(wanted) / setting.slots
    by_prompt = [wanted[p * samples : (p + 1) * samples] for p in range(setting.prompts)]
    load_before = load_average()
    with started(pythons, _job(loaded, prompts, by_prompt, setting.slots)) as (peers, skipped):
        limit = weights_limit(arch, setting.slots, steps, loaded.model.dtype)
        seconds = take_turns({"ours": runs, "equal": at_mean, "limit": limit, **peers}, repeats)
        of_peers = against_peers(peers, skipped, seconds, sum(wanted))
    _check_lengths(runs.rollouts, wanted)
    _check_lengths(at_mean.rollouts, equal)
    ours_s, equal_s, *_ = medians(seconds)
    ratio = sum(wanted) / ours_s / (sum(equal) / equal_s)
    at_once = max(1, setting.slots // samples)
    cached = Cached(at_once, _mean(prompts), setting.mean)
    return {
        **line(loaded, 2, setting, sum(wanted), seconds, prompts),
        "lengths": wanted,
        "equal_tokens_per_s": sum(equal) / equal_s,
        "equal_seconds": seconds["equal"],
        "ratio_to_equal_lengths": ratio,
        "targets": {"ratio_to_equal_lengths": {"at_least": 0.7, "met": ratio >= 0.7}},
        **runs.line(),
        **on_chip(loaded, setting.slots, cached, sum(wanted), seconds["ours"]),
        "weight_sync_s": weight_sync(engine, loaded.params),
        **of_peers,
        "load_average": load_before,
    }


def long(loaded: Loaded, setting: Long, repeats: int, pythons: Mapping[str, str]) -> dict[str, Any]:
    """Setting 3: held against one prefill a prompt and decoding at its limit.

    The prefill is measured in turn: the same requests for one token. The limit of decoding counts
    the products with the weights for the other tokens; `attention_limit_tokens_per_s` counts those
    of attention too, over each prompt once for its samples and over half the new tokens of each
    slot. Alone, each sample has a prompt of its own that differs in its first token; as this takes
    long, the samples of one prompt are timed so, once, after a run that is discarded.
    """
    prompts = long_prompts(loaded.tokenizer, setting)
    slots, new, arch = setting.prompts * setting.samples, setting.new, loaded.model.arch
    dtype = loaded.model.dtype
    runs = Runs(loaded.engine(slots), requests_of(prompts, setting.samples, new))
    first = Runs(runs.engine, requests_of(prompts, setting.samples, 1))
    cached = Cached(setting.prompts, setting.prompt_tokens, new / 2)
    load_before = load_average()
    lengths = [[new] * setting.samples] * setting.prompts
    calls = {
        "ours": runs,
        "limit": weights_limit(arch, slots, new, dtype),
        "first": first,
        "attention": Lazily(lambda: attention_limit(arch, slots, new, cached, dtype)),
    }
    with started(pythons, _job(loaded, prompts, lengths, slots)) as (peers, skipped):
        seconds = take_turns({**calls, **peers}, repeats)
        of_peers = against_peers(peers, skipped, seconds, slots * new)
    _check_lengths(runs.rollouts, [new] * slots)
    sync_s = weight_sync(runs.engine, loaded.params)
    runs.engine.free()

    apart = [[i % arch.vocab_size, *prompts[0][1:]] for i in range(setting.samples)]
    alone = Runs(loaded.engine(setting.samples), requests_of(apart, 1, new))
    alone(0)
    alone_s = alone(1) * setting.prompts
    ours_s, limit_s, first_s, attention_s, *_ = medians(seconds)
    rest = (new - 1) / new
    times_bound = ours_s / (first_s + rest * limit_s)
    return {
        **line(loaded, 3, setting, slots * new, seconds, prompts),
        "attention_limit_tokens_per_s": slots * new / (limit_s + attention_s),
        "prefill_s": first_s,
        "times_prefill_and_limit": times_bound,
        "times_prefill_and_attention_limit": ours_s / (first_s + rest * (limit_s + attention_s)),
        "alone_tokens_per_s": slots * new / alone_s,
        "ratio_to_alone": alone_s / ours_s,
        "targets": {
            "times_prefill_and_limit": {"at_most": 1.3, "met": times_bound <= 1.3},
            "ratio_to_alone": {"at_least": 4, "met": alone_s / ours_s >= 4},
        },
        **runs.line(),
        **on_chip(loaded, slots, cached, slots * new, seconds["ours"]),
        "weight_sync_s": sync_s,
        **of_peers,
        "load_average": load_before,
    }


def long_prompts(tokenizer: HFTokenizer, setting: Long) -> list[list[int]]:
    """Prompts of exactly so many tokens: the short ones in a row, each beginning with another."""
    short = prompts_of(tokenizer, setting.prompts)
    found = []
    for p in range(setting.prompts):
        ids = itertools.cycle(itertools.chain.from_iterable(short[p:] + short[:p]))
        found.append(list(itertools.islice(ids, setting.prompt_tokens)))
    return found


def against_peers(
    peers: Mapping[str, Peer],
    skipped: Mapping[str, str],
    seconds: Mapping[str, list[float]],
    tokens: int,
) -> dict[str, Any]:
    """Our speed over that of each peer, and why others were not there."""
    (ours,) = medians({"ours": seconds["ours"]})
    found: dict[str, Any] = {}
    for name, peer in peers.items():
        (of_peer,) = medians({name: seconds[name]})
        found[f"ratio_to_{name}"] = of_peer / ours
        found[name] = {
            "tokens_per_s": tokens / of_peer,
            "seconds": seconds[name],
            "peak_memory_bytes": peer.peak_memory_bytes,
            "versions": peer.versions,
        }
    return found | {name: {"skipped": reason} for name, reason in skipped.items()}


def _job(
    loaded: Loaded, prompts: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]], slots: int
) -> Job:
    cores = machine()["cores"]
    return Job(str(loaded.folder), prompts, lengths, slots, loaded.model.dtype, cores)


def _mean(prompts: Sequence[Sequence[int]]) -> int:
    return round(sum(map(len, prompts)) / len(prompts))


def _check_lengths(rollouts: Sequence[Rollout], wanted: Sequence[int]) -> None:
    found = [len(rollout.token_ids) for rollout in rollouts]
    assert found == list(wanted), f"lengths {found} where {list(wanted)} were wanted"
