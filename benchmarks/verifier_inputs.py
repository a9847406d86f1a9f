"""Inputs that try to break verifiers: random LaTeX, unicode, nesting, huge numbers, tags.

Drawn by hypothesis with a fixed seed, so that the benchmark and the tests see the same ones.
"""

from __future__ import annotations

import json
from typing import Any

import hypothesis
from hypothesis import strategies as st

from jaxrl_vr.types import Example

_PIECES = (
    r"\frac \dfrac \sqrt \sqrt[3] \pi \pm \mp \cup \cap \setminus \infty \emptyset \mathbb{R} "
    r"\text \mathrm \boxed \fbox \begin{pmatrix} \end{pmatrix} \begin{vmatrix} \end{vmatrix} \\ & "
    r"\sin \cos^{-1} \log_ \ln \overline \dot \binom \over \choose \lfloor \rfloor \sum_{k=1}^ "
    r"\prod \left( \right] \left| \right| \{ \} \langle \circ ^\circ \prime \approx \ldots \mid "
    r"\in \ne \le \ge < > = { } ( ) [ ] | , ; : . ! ' ^ _ + - * / ** % \% $ $$ \( \) \[ \] # & "
    r"#### ~ 0 1 2 10 3.5 .5 007 1,000 1e9 1e-3 9999999999999999999 0.333... 12:30 3:4 x y n e i "
    r"a_1 f(x) ABC and or not is the answer is Answer: Final cm meters dollars percent \quad \, \! "
    r"\; <think> </think> <answer> </answer> \color{red} \displaystyle \hspace{1cm} C(5,2) 204_5"
).split()
_TOWERS = (
    "9^{9^{9^{9}}}",
    "(10^{9})!",
    "((9!)!)!",
    r"\binom{10^{12}}{10^{6}}",
    r"\sum_{k=1}^{10^{12}} k^{k}",
    r"\prod_{k=1}^{400} k^{400}",
    "(x+y+z+w)^{200}",
    r"\log(9^{9^{9^9}})",
    "7^{e^{e^{e^{10e}}}}+1",
    r"\sin^{9999}(\cos^{9999}(x))",
    "1e999999999",
    "0.1^{10^{10}}",
)
_NESTED = ("{", "}"), ("(", ")"), (r"\sqrt{", "}"), (r"\frac{1}{", "}"), ("x_{", "}"), ("2^{", "}")
_SIZES = (2, 30, 500, 5000)


def texts() -> st.SearchStrategy[str]:
    """Answers and responses, most of them short, some of 200,000 characters."""
    pieces = st.lists(st.sampled_from(_PIECES), max_size=14)
    characters = st.text(st.characters(exclude_categories=()), max_size=40)
    controls = st.text(st.characters(categories=("Cc", "Cf", "Cs", "Co", "Nd", "Sm")), max_size=20)
    digits = st.integers(1, 6000).map(lambda n: "7" * n)
    nested = st.builds(
        lambda pair, n, inner: pair[0] * n + inner + pair[1] * n,
        st.sampled_from(_NESTED),
        st.sampled_from(_SIZES),
        st.sampled_from(("", "5", "x", "\\")),
    )
    repeated = st.builds(
        lambda piece, n: piece * (n // len(piece)),
        st.sampled_from(_PIECES),
        st.sampled_from((10, 300, 4000, 200_000)),
    )
    core = st.one_of(
        pieces.map("".join),
        pieces.map(" ".join),
        characters,
        controls,
        st.sampled_from(_TOWERS),
        digits,
        nested,
        st.integers().map(str),
        st.fractions().map(str),
        st.decimals(allow_nan=True).map(str),
        repeated,
    )
    wraps = st.sampled_from(
        ("{}", r"\boxed{{{}}}", "The answer is {}.", "#### {}", "<answer>{}</answer>", "${}$")
    )
    return st.builds(lambda wrap, text: wrap.format(text), wraps, core)


def pairs(n: int) -> list[tuple[str, str]]:
    """`n` pairs of a reference and a response, the same ones each time."""
    found: list[tuple[str, str]] = []

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=n,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(texts(), texts(), st.integers(0, 9))
    def draw(reference: str, response: str, kind: int) -> None:
        if len(found) < n:
            found.append((response if kind == 0 else reference, response))

    draw()
    return found


_CONSTRAINTS = {
    "constraint": [
        "keywords:forbidden_words",
        "length_constraints:number_sentences",
        "detectable_content:number_placeholders",
        "detectable_format:number_highlighted_sections",
        "detectable_format:json_format",
        "change_case:capital_word_frequency",
    ],
    "kwargs": [
        {"forbidden_words": ["c++"]},
        {"num_sentences": 3, "relation": "at least"},
        {"num_placeholders": 2},
        {"num_highlights": 1},
        {},
        {"capital_frequency": 2, "capital_relation": "less than"},
    ],
}
SPECS: dict[str, tuple[dict[str, Any], str | None]] = {
    "math_answer": ({}, None),
    "exact": ({}, None),
    "format": ({}, None),
    "constraints": ({"mode": "loose"}, json.dumps(_CONSTRAINTS)),
    "language": ({"language": "en"}, None),
    "choice": ({}, "B"),
    "numeric": ({"relative": 0.1}, "5"),
    "regex": ({"pattern": r"^\s*[\w ]+$"}, None),
    "json_schema": ({"definition": {"type": "array"}}, None),
}
"""Verifier -> its options, and the reference where a random one would be none (None: random)."""


def task(number: int, reference: str, verifier: str) -> Example:
    """A random pair's task for a verifier."""
    options, fixed = SPECS[verifier]
    spec = {"type": verifier, **options}
    return Example(str(number), "", reference if fixed is None else fixed, spec)
