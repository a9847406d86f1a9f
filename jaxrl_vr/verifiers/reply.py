"""What a checker outside of this package says about a response, as JSON, and the Score it means."""

from __future__ import annotations

import json
from typing import Any

from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.judgement import BadScore, checked, number


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
