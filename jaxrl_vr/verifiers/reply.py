"""What a checker outside of this package says about a response, as JSON, and the Score it means.

A checker may fail: it ends with an error, says what is no judgement, refuses the question. A
response that makes it fail must not be better off than a wrong one, and one that has nothing to do
with it not worse off than others. So it is asked again, and then about harmless responses: if it
judges one of these, the failure is the response's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.judgement import BadScore, checked, number
from jaxrl_vr.verifiers.text import one_line


class Unfinished(Exception):
    """A checker did not get to its end, by a response that is too much for it or by chance."""


class Refused(BadScore):
    """A checker will not judge, and would say so again."""


def question(example: Example, response: str) -> dict[str, Any]:
    """What a checker is asked: an object of `id`, `prompt`, `reference` and `response`."""
    prompt = example.prompt
    if not isinstance(prompt, str):
        prompt = [{"role": message.role, "content": message.content} for message in prompt]
    return {
        "id": example.id,
        "prompt": prompt,
        "reference": example.reference,
        "response": response,
    }


def score_of(reply: str | bytes, checker: str) -> Score:
    """The score that a reply means.

    A reply is a number, true or false, or an object of `value` and, as it likes, `verdict`,
    `reason` and `components`. Without a verdict, a value of 1 or more is right.

    Args:
      reply: JSON.
      checker: what messages call who said it.

    Raises:
      BadScore: it is no such reply.
    """
    try:
        said = json.loads(reply)
    except (ValueError, RecursionError):
        text = reply if isinstance(reply, str) else reply.decode(errors="replace")
        raise BadScore(f"{checker} said {text.strip()!r:.80}, which is no JSON") from None
    fields = said if isinstance(said, dict) else {"value": said}
    unknown = sorted(fields.keys() - {"value", "verdict", "reason", "components"})
    if unknown or "value" not in fields:
        fault = f"the unknown {unknown}" if unknown else "no value"
        raise BadScore(f"{checker} said {fault}; say value, verdict, reason, components")
    value = number(fields["value"], checker, "value")
    verdict = fields.get("verdict") or ("right" if value >= 1 else "wrong")
    reason = str(fields.get("reason") or "")
    return checked(Score(value, verdict, fields.get("components") or {}, reason), checker)


def judged(once: Callable[[str], Score], example: Example, response: str) -> Score:
    """The judgement of a checker that may fail.

    Args:
      once: asks it about a response; raises `Unfinished`, or `BadScore` where it fails.
      example: whose reference is a harmless response, as is an empty one.
      response: what is to be judged.

    Raises:
      BadScore: it fails again, and at harmless responses as well.
    """
    fault: Exception | None = None
    for _ in range(2):
        try:
            return once(response)
        except Refused as error:
            fault = error
            break
        except (Unfinished, BadScore) as error:
            fault = error
    harmless = [other for other in ("", example.reference) if other != response]
    if isinstance(fault, BadScore) and not any(_judges(once, other) for other in harmless):
        raise fault
    times = "" if isinstance(fault, Refused) else ", twice"
    return Score(0.0, "wrong", reason=one_line(f"limit: {fault}{times}"))


def _judges(once: Callable[[str], Score], response: str) -> bool:
    try:
        score = once(response)
    except (Unfinished, BadScore):
        return False
    return score.verdict != "unscorable" and not score.reason.startswith("limit")
