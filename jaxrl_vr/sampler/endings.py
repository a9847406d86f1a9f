"""What ends or turns a completion beside its stop ids: stop strings and forced tokens. No jax.

Both are questions of text, so the host asks them, between two chunks of decode steps. What was
sampled behind an end within the chunk is dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from jaxrl_vr.sampler.scheduler import Live
from jaxrl_vr.types import Forced, Prefix, Request, Sampling, TokenSource

Decode = Callable[[Sequence[int]], str]


class Endings:
    """The rules of one engine.

    Args:
      decode: token ids -> text; without it, requests cannot ask for what needs text.
      vocab_size: of the model.
    """

    def __init__(self, decode: Decode | None, vocab_size: int):
        self._decode = decode
        self._vocab_size = vocab_size

    def check(self, who: str, sampling: Sampling) -> None:
        """Refuses stop strings and forced tokens that cannot act.

        Raises:
          ValueError: begins with `who`, names the value and the fix.
        """
        if "" in sampling.stop:
            raise ValueError(f"{who}: an empty stop string would end it at once; leave it out")
        if (sampling.stop or sampling.forced) and self._decode is None:
            raise ValueError(
                f"{who}: stop strings and forced tokens are found in text; give the engine `decode`"
            )
        after = 0
        for forced in sampling.forced:
            if forced.after < after:
                raise ValueError(
                    f"{who}: tokens are forced after {forced.after} tokens, where those before "
                    f"them end at {after}; raise it to {after}"
                )
            after = forced.after + len(forced.token_ids)
            if after >= sampling.max_new_tokens:
                raise ValueError(
                    f"{who}: {len(forced.token_ids)} tokens forced after {forced.after} leave "
                    f"nothing to sample below max_new_tokens = {sampling.max_new_tokens}; raise "
                    f"that above {after}"
                )
            for token in forced.token_ids:
                if not 0 <= token < self._vocab_size:
                    raise ValueError(
                        f"{who}: forced token id {token} is outside the model's vocabulary of "
                        f"{self._vocab_size}"
                    )

    def taken(self, requests: Iterable[Request], version: int) -> list[Request]:
        """The requests as a scheduler takes them: checked, and with what is due already forced.

        Raises:
          ValueError: as `check`; then none of them is to be taken.
        """
        requests = list(requests)
        for request in requests:
            self.check(f"request {request.id}", request.sampling)
        return [self._prepared(request, version) for request in requests]

    def _prepared(self, request: Request, version: int) -> Request:
        """The request, with what is to be forced right behind its prefix in the prefix."""
        prefix = request.prefix
        forced = self._due(request.sampling.forced, prefix.token_ids)
        if not forced:
            return request
        n, source = len(forced), cast(TokenSource, "forced")
        mass = None if prefix.kept_mass is None else (*prefix.kept_mass, *(0.0,) * n)
        is_known = prefix.entropy is not None or not prefix.token_ids
        entropy = (*(prefix.entropy or ()), *(0.0,) * n) if is_known else None
        longer = Prefix(
            (*prefix.token_ids, *forced),
            (*prefix.logp, *(0.0,) * n),
            mass,
            (*prefix.source, *(source for _ in forced)),
            (*prefix.version, *(version,) * n),
            entropy,
        )
        return dataclasses.replace(request, prefix=longer)

    def limit(self, live: Live) -> int:
        """Completion tokens at which sampling pauses: for tokens to be forced, or for good."""
        n = len(live.token_ids)
        coming = (f.after for f in live.request.sampling.forced if f.after > n)
        return min((*coming, live.request.sampling.max_new_tokens))

    def force(self, live: Live, version: int) -> int:
        """Puts what is to be forced behind the completion; returns how many tokens."""
        forced = self._due(live.request.sampling.forced, live.token_ids)
        zeros = [0.0] * len(forced)
        live.extend(forced, zeros, zeros, "forced", version, zeros)
        return len(forced)

    def stop(self, live: Live, searched: int) -> int | None:
        """Tokens up to and with the one that completes a stop string.

        Args:
          live: a completion.
          searched: its first tokens, which hold no end yet.

        Returns:
          None where no stop string is complete.
        """
        stops = live.request.sampling.stop
        if not stops or self._decode is None:
            return None
        # Far enough back for a string that begins in what was searched; forced text never stops.
        ids, longest = live.token_ids, max(map(len, stops))
        first = max((i + 1 for i in range(searched) if live.source[i] != "sampled"), default=0)
        begin = searched
        while begin > first and len(self._decode(ids[begin:searched])) < longest:
            begin = max(first, begin - longest)

        def is_complete(n: int) -> bool:
            text = self._decode(ids[begin:n]) if self._decode else ""
            return any(stop in text for stop in stops)

        if not is_complete(len(ids)):
            return None
        return next(n for n in range(searched + 1, len(ids) + 1) if is_complete(n))

    def _due(self, rules: Sequence[Forced], ids: Sequence[int]) -> tuple[int, ...]:
        for forced in rules:
            if forced.after == len(ids) and self._decode is not None:
                return () if forced.unless in self._decode(ids) else forced.token_ids
        return ()
