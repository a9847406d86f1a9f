"""The 25 instructions of IFEval (https://arxiv.org/abs/2311.07911) by id and arguments.

Each check has the semantics of Google's reference, kept also where one might expect others: a
keyword counts inside of longer words, a paragraph ends at `***`, "2 bullets" is exactly two, and a
response whose language cannot be told is in the language asked for. Where the reference reads an
argument as a regular expression (keywords, splitters, markers), the text itself is meant here:
`c++` is a keyword. The time that a response takes is linear in its length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_vr.verifiers.languages import LANGUAGES, canonical, detect
from jaxrl_vr.verifiers.sentences import count_capital_words, count_sentences

Kwargs = Mapping[str, Any]
Check = Callable[[str, Kwargs], bool]

_RELATIONS = ("less than", "at least")
_CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_BULLETS = (
    re.compile(r"^[^\S\n]*\*[^*].*$", re.MULTILINE),
    re.compile(r"^[^\S\n]*-.*$", re.MULTILINE),
)
_HIGHLIGHT, _BOLD = re.compile(r"\*[^\n*]*\*"), re.compile(r"\*\*[^\n*]*\*\*")
_FENCES = ("```json", "```Json", "```JSON", "```")
_POSTSCRIPTS = {"P.P.S": re.compile(r"p\.\s?p\.\s?s"), "P.S.": re.compile(r"p\.\s?s\.")}


class BadKwargs(ValueError):
    """Arguments that do not fit their instruction; the message names them and the fix."""


def follows(id: str, kwargs: Kwargs, response: str) -> bool:
    """Whether `response`, taken as it is, follows one instruction. An empty one follows none.

    Raises:
      BadKwargs: an argument is missing, unknown or of the wrong kind.
    """
    check_kwargs(id, kwargs)
    if not response.strip():
        return False
    given = {key: value for key, value in kwargs.items() if value is not None}
    return _INSTRUCTIONS[id][0](response, given)


def check_kwargs(id: str, kwargs: Kwargs) -> None:
    """Checks the arguments of a known instruction; what is None counts as not given.

    Raises:
      BadKwargs: an argument is missing, unknown or of the wrong kind.
    """
    names = _INSTRUCTIONS[id][1]
    given = {key: value for key, value in kwargs.items() if value is not None}
    if unknown := sorted(set(given) - set(names)):
        raise BadKwargs(f"{id} has no argument {unknown[0]!r}; it has {sorted(names) or 'none'}")
    for name, kind in names.items():
        if name not in given:
            raise BadKwargs(f"{id} needs the argument {name!r}: {kind.__doc__}")
        if not kind(given[name]):
            shown = repr(given[name])[:80]
            raise BadKwargs(f"{id} has {name} = {shown}; it must be {kind.__doc__}")


# Arguments: each function says whether a value is of its kind, which its docstring names.


def _count(value: Any) -> bool:
    """a whole number, 0 or more"""
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return is_whole and not isinstance(value, bool) and value >= 0


def _text(value: Any) -> bool:
    """a text that is not empty"""
    return isinstance(value, str) and bool(value.strip())


def _letter(value: Any) -> bool:
    """one letter"""
    return isinstance(value, str) and len(value.strip()) == 1


def _texts(value: Any) -> bool:
    """a list of texts that are not empty"""
    return isinstance(value, list | tuple) and bool(value) and all(map(_text, value))


def _relation(value: Any) -> bool:
    """'less than' or 'at least'"""
    return value in _RELATIONS


def _language(value: Any) -> bool:
    """a code of ISO 639-1 that can be told, such as 'de'"""
    return isinstance(value, str) and canonical(value) in LANGUAGES


def _compare(count: int, relation: str, bound: float) -> bool:
    return count < bound if relation == "less than" else count >= bound


# Instructions, in the order of the reference's table.


def _existence(response: str, kwargs: Kwargs) -> bool:
    return all(_keyword(word).search(response) for word in kwargs["keywords"])


def _frequency(response: str, kwargs: Kwargs) -> bool:
    count = sum(1 for _ in _keyword(kwargs["keyword"].strip()).finditer(response))
    return _compare(count, kwargs["relation"], kwargs["frequency"])


def _keyword(word: str) -> re.Pattern[str]:
    return re.compile(re.escape(word), re.IGNORECASE)


def _forbidden_words(response: str, kwargs: Kwargs) -> bool:
    return not any(_whole_word(word).search(response) for word in kwargs["forbidden_words"])


def _whole_word(word: str) -> re.Pattern[str]:
    # A border of a word only where the word itself has one, so that `c++` is found as well.
    left = r"(?<!\w)" if re.match(r"\w", word) else ""
    right = r"(?!\w)" if re.search(r"\w\Z", word) else ""
    return re.compile(left + re.escape(word) + right, re.IGNORECASE)


def _letter_frequency(response: str, kwargs: Kwargs) -> bool:
    count = response.lower().count(kwargs["letter"].strip().lower())
    return _compare(count, kwargs["let_relation"], kwargs["let_frequency"])


def _response_language(response: str, kwargs: Kwargs) -> bool:
    return detect(response) in (canonical(kwargs["language"]), None)


def _number_sentences(response: str, kwargs: Kwargs) -> bool:
    return _compare(count_sentences(response), kwargs["relation"], kwargs["num_sentences"])


def _number_paragraphs(response: str, kwargs: Kwargs) -> bool:
    pieces = _pieces(re.split(r"\s?\*\*\*\s?", response))
    return pieces is not None and len(pieces) == kwargs["num_paragraphs"]


def _pieces(parts: list[str]) -> list[str] | None:
    """The parts without an empty first and last one; None where one between is empty."""
    if any(not part.strip() for part in parts[1:-1]):
        return None
    return [part for part in parts if part.strip()]


def _number_words(response: str, kwargs: Kwargs) -> bool:
    count = sum(1 for _ in re.finditer(r"\w+", response))
    return _compare(count, kwargs["relation"], kwargs["num_words"])


def _nth_paragraph_first_word(response: str, kwargs: Kwargs) -> bool:
    parts = response.split("\n\n")
    count = sum(bool(part.strip()) for part in parts)
    nth = int(kwargs["nth_paragraph"])
    # The n-th of all parts: an empty one before it shifts what is looked at.
    if not 1 <= nth <= count or not (words := parts[nth - 1].split()):
        return False
    word = re.split(r"""[.,?!'"]""", words[0].lstrip("'").lstrip('"'), maxsplit=1)[0]
    is_first = word.lower() == kwargs["first_word"].lower()
    return count == kwargs["num_paragraphs"] and is_first


def _number_placeholders(response: str, kwargs: Kwargs) -> bool:
    count = 0
    for line in response.split("\n"):
        end = 0
        while (start := line.find("[", end)) >= 0 and (end := line.find("]", start) + 1):
            count += 1
    return count >= kwargs["num_placeholders"]


def _postscript(response: str, kwargs: Kwargs) -> bool:
    marker = kwargs["postscript_marker"].strip()
    lowered = response.lower()
    pattern = _POSTSCRIPTS.get(marker)
    return bool(pattern.search(lowered)) if pattern else marker.lower() in lowered


def _number_bullet_lists(response: str, kwargs: Kwargs) -> bool:
    count = sum(1 for pattern in _BULLETS for _ in pattern.finditer(response))
    return count == kwargs["num_bullets"]


def _constrained_response(response: str, kwargs: Kwargs) -> bool:
    return any(choice in response for choice in _CHOICES)


def _number_highlighted_sections(response: str, kwargs: Kwargs) -> bool:
    found = [match[0].strip("*") for match in _HIGHLIGHT.finditer(response)]
    found += [match[0][2:-2] for match in _BOLD.finditer(response)]
    return sum(bool(text.strip()) for text in found) >= kwargs["num_highlights"]


def _multiple_sections(response: str, kwargs: Kwargs) -> bool:
    splitter = re.escape(kwargs["section_spliter"].strip())
    count = sum(1 for _ in re.finditer(rf"{splitter}\s?\d+", response))
    return count >= kwargs["num_sections"]


def _json_format(response: str, kwargs: Kwargs) -> bool:
    text = response.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):  # also numbers of more digits than Python reads
        return False
    return True


def _title(response: str, kwargs: Kwargs) -> bool:
    for line in response.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end - 2 and line[start : end + 2].lstrip("<").rstrip(">").strip():
            return True
    return False


def _two_responses(response: str, kwargs: Kwargs) -> bool:
    pieces = _pieces(response.split("******")) or []
    return len(pieces) == 2 and pieces[0].strip() != pieces[1].strip()


def _repeat_prompt(response: str, kwargs: Kwargs) -> bool:
    return response.strip().lower().startswith(kwargs["prompt_to_repeat"].strip().lower())


def _end_checker(response: str, kwargs: Kwargs) -> bool:
    return response.strip().strip('"').lower().endswith(kwargs["end_phrase"].strip().lower())


def _capital_word_frequency(response: str, kwargs: Kwargs) -> bool:
    count = count_capital_words(response)
    return _compare(count, kwargs["capital_relation"], kwargs["capital_frequency"])


def _english_capital(response: str, kwargs: Kwargs) -> bool:
    return response.isupper() and detect(response) == "en"


def _english_lowercase(response: str, kwargs: Kwargs) -> bool:
    return response.islower() and detect(response) == "en"


def _no_comma(response: str, kwargs: Kwargs) -> bool:
    return "," not in response


def _quotation(response: str, kwargs: Kwargs) -> bool:
    text = response.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


_INSTRUCTIONS: dict[str, tuple[Check, dict[str, Callable[[Any], bool]]]] = {
    "keywords:existence": (_existence, {"keywords": _texts}),
    "keywords:frequency": (
        _frequency,
        {"keyword": _text, "frequency": _count, "relation": _relation},
    ),
    "keywords:forbidden_words": (_forbidden_words, {"forbidden_words": _texts}),
    "keywords:letter_frequency": (
        _letter_frequency,
        {"letter": _letter, "let_frequency": _count, "let_relation": _relation},
    ),
    "language:response_language": (_response_language, {"language": _language}),
    "length_constraints:number_sentences": (
        _number_sentences,
        {"num_sentences": _count, "relation": _relation},
    ),
    "length_constraints:number_paragraphs": (_number_paragraphs, {"num_paragraphs": _count}),
    "length_constraints:number_words": (
        _number_words,
        {"num_words": _count, "relation": _relation},
    ),
    "length_constraints:nth_paragraph_first_word": (
        _nth_paragraph_first_word,
        {"num_paragraphs": _count, "nth_paragraph": _count, "first_word": _text},
    ),
    "detectable_content:number_placeholders": (
        _number_placeholders,
        {"num_placeholders": _count},
    ),
    "detectable_content:postscript": (_postscript, {"postscript_marker": _text}),
    "detectable_format:number_bullet_lists": (_number_bullet_lists, {"num_bullets": _count}),
    "detectable_format:constrained_response": (_constrained_response, {}),
    "detectable_format:number_highlighted_sections": (
        _number_highlighted_sections,
        {"num_highlights": _count},
    ),
    "detectable_format:multiple_sections": (
        _multiple_sections,
        {"section_spliter": _text, "num_sections": _count},
    ),
    "detectable_format:json_format": (_json_format, {}),
    "detectable_format:title": (_title, {}),
    "combination:two_responses": (_two_responses, {}),
    "combination:repeat_prompt": (_repeat_prompt, {"prompt_to_repeat": _text}),
    "startend:end_checker": (_end_checker, {"end_phrase": _text}),
    "change_case:capital_word_frequency": (
        _capital_word_frequency,
        {"capital_frequency": _count, "capital_relation": _relation},
    ),
    "change_case:english_capital": (_english_capital, {}),
    "change_case:english_lowercase": (_english_lowercase, {}),
    "punctuation:no_comma": (_no_comma, {}),
    "startend:quotation": (_quotation, {}),
}
IDS = tuple(_INSTRUCTIONS)
"""The ids of all instructions."""
