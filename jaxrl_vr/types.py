"""The types that cross the borders between layers, as plain host-side dataclasses.

Device-side types live where they are built: `Batch` in `rollout.batch`, `TrainState` in
`train.state`, `Param` in `models.params`. Everything here is immutable and holds only Python
values, so it can be pickled to a worker process, written to JSON and compared with `==`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Verdict = Literal["right", "wrong", "no_answer", "unscorable"]
"""`right`: every check passes. `wrong`: the value may still be a fraction. `no_answer`: nothing
to check, scores 0 and counts in its group. `unscorable`: a fault that is ours (a bad reference, a
lost worker), left out of the group."""

Finish = Literal["stop", "length", "aborted"]
TokenSource = Literal["sampled", "forced", "observation"]


class Message(NamedTuple):
    """One turn of a chat."""

    role: str
    content: str


@dataclasses.dataclass(frozen=True)
class Example:
    """One task: what the model is asked, and what a verifier needs to judge the answer."""

    id: str  # stable across runs and epochs; unique within its source
    prompt: str | tuple[Message, ...]  # text, or a chat still to be rendered by a template
    reference: str = ""  # what the verifier compares with, as the data set holds it
    verifier: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # {"type": ...}: a spec
    source: str = ""  # name of the data source, for mixtures and metrics
    difficulty: float | None = None
    completion: str | None = None  # a demonstration: what supervised training imitates
    rejected: str | None = None  # a worse completion: what preference training turns away from


@dataclasses.dataclass(frozen=True)
class Step:
    """Score of one reasoning step; `end` is the offset of the character behind the step."""

    end: int
    value: float


@dataclasses.dataclass(frozen=True)
class Score:
    """A verifier's judgement of one response."""

    value: float
    verdict: Verdict
    components: Mapping[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""  # one line a person can read: what was extracted, why it failed
    steps: tuple[Step, ...] = ()


@dataclasses.dataclass(frozen=True)
class Forced:
    """Tokens put behind a completion that gets so long without having written a text.

    A thinking budget closes the thinking part this way (Qwen3, arXiv:2505.09388).
    """

    after: int  # completion tokens
    token_ids: tuple[int, ...]
    unless: str  # nothing is forced where the completion holds this


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Sampling values and limits of one request; all are traced, so none compiles anything."""

    max_new_tokens: int  # prefix tokens count
    temperature: float = 1.0  # 0 is greedy; log-probs are then those of temperature 1
    top_k: int = 0  # 0 is off
    top_p: float = 1.0  # 1 is off
    min_p: float = 0.0  # 0 is off
    stop_ids: tuple[int, ...] = ()  # EOS and end-of-turn ids; the one that is met is kept
    stop: tuple[str, ...] = ()  # strings that end a completion; the token that completes one stays
    forced: tuple[Forced, ...] = ()  # each behind the end of the one before


@dataclasses.dataclass(frozen=True)
class Prefix:
    """Completion tokens a request already has when it is (re)submitted; one entry a token."""

    token_ids: tuple[int, ...] = ()
    logp: tuple[float, ...] = ()
    kept_mass: tuple[float, ...] | None = None  # None: support uncut
    source: tuple[TokenSource, ...] = ()
    version: tuple[int, ...] = ()
    entropy: tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Request:
    """One completion to sample."""

    id: int  # stable and global: unique among the live requests of an engine
    prompt_ids: tuple[int, ...]
    key: tuple[int, int, int, int]  # (seed, step, prompt, sample), each in [0, 2**32)
    sampling: Sampling
    prefix: Prefix = Prefix()


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One completion, token by token; `logp` is log_softmax(logits / T), untruncated."""

    id: int  # of its request
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]  # the first EOS included; never re-tokenised
    logp: tuple[float, ...]  # [n], under the weights that sampled the token
    source: tuple[TokenSource, ...]  # [n]; only "sampled" tokens train
    version: tuple[int, ...]  # [n], version of the weights that sampled the token
    kept_mass: tuple[float, ...] | None  # [n], log of the kept probability; None: support uncut
    finish: Finish
    score: Score | None = None
    entropy: tuple[float, ...] | None = None  # [n] nats at temperature T; None: not known of all

    def as_prefix(self) -> Prefix:
        """What a request starts from that goes on with this completion."""
        return Prefix(
            self.token_ids, self.logp, self.kept_mass, self.source, self.version, self.entropy
        )

    @property
    def num_forced(self) -> int:
        """Tokens that were put there and not sampled, such as the end of a thinking part."""
        return sum(source == "forced" for source in self.source)


@dataclasses.dataclass(frozen=True)
class Group:
    """One example and its G rollouts, in sample order."""

    example: Example
    rollouts: tuple[Rollout, ...]


class Mean(NamedTuple):
    """A metric that averages: sums and counts add up across micro-batches, devices and steps."""

    sum: Any
    count: Any


class Min(NamedTuple):
    """A metric of which the smallest value counts."""

    value: Any


class Max(NamedTuple):
    """A metric of which the largest value counts."""

    value: Any


Metric = Mean | Min | Max
Metrics = dict[str, Metric]
