"""Tasks of reasoning-gym (https://arxiv.org/abs/2505.24760), judged by their own scorers.

Needs the extra `gym`. A reference says how a problem was made (task, options, seed), and the
problem is made again to be scored. Scorers that evaluate the response as Python are refused: no
sandbox is around them. Which do is read off their code, and off all code of the package that it
names, because each version may have other ones.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from jaxrl_vr.config import Config
from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.extract import after_thinking
from jaxrl_vr.verifiers.text import one_line

_EVALUATES = frozenset(
    # Python's, those that start programs, those of files that may hold code, and sympy's, which
    # takes a text for a formula and parses it by `eval`.
    (
        "eval exec compile __import__ import_module run_path run_module "
        "system popen Popen run call check_call check_output getoutput "
        "load loads full_load unsafe_load "
        "parse_expr parse_latex sympify simplify nsimplify lambdify S Poly solve expand factor"
    ).split()
)
"""Names of functions that run a text, or may."""
_HARMLESS = {"load": ["json"], "loads": ["json"], "compile": ["re"]}
"""The modules whose functions of such a name run none."""
_OF_THE_PROBLEM = {"entry", "metadata", "problem"}
"""What a scorer calls the problem, which it may evaluate: the package has made it itself."""
_PACKAGE = "reasoning_gym"


class ReasoningGym(Config):
    """The value that the task's scorer gives the answer, right from 1 on.

    The scorers give some wrong answers a fraction, for their form or for parts that are right.
    """

    needs_reference: ClassVar[bool] = True
    type: Literal["reasoning_gym"] = "reasoning_gym"
    tag: str = "answer"
    """Tag that holds the answer, whose last block counts; empty: all behind the thinking is it."""
    partial: bool = True
    """Whether a wrong answer keeps its fraction; if not it is worth 0."""

    def load(self) -> None:
        """Imports the package.

        Raises:
          ValueError: it is missing.
        """
        _package()

    def answer(self, example: Example, response: str) -> str | None:
        """The answer as it stands, or None if there is none."""
        text = after_thinking(example.prompt, response)
        if text is None:
            return None
        if self.tag:
            head, closed, _ = text.rpartition(f"</{self.tag}>")
            _, opened, text = head.rpartition(f"<{self.tag}>")
            if not (closed and opened):
                return None
        return text.strip() or None

    def __call__(self, example: Example, response: str) -> Score:
        """The scorer's judgement of the answer."""
        try:
            made = json.loads(example.reference)
            dataset, entry = problem(made["task"], made["options"], made["seed"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            return Score(0.0, "unscorable", reason=f"the reference: {one_line(repr(error))}")
        if entry["question"] != made.get("question"):
            reason = "the problem came out differently; make the data with this reasoning-gym"
            return Score(0.0, "unscorable", reason=reason)
        answer = self.answer(example, response)
        if answer is None:
            return Score(0.0, "no_answer", reason="no answer in its tags, or an open thinking")
        try:
            value = float(dataset.score_answer(answer=answer, entry=entry))
        except MemoryError:
            raise
        except Exception as error:  # the boundary: what a scorer cannot read is a wrong answer
            return Score(0.0, "wrong", reason=f"the scorer raised {type(error).__name__}")
        reason = f"answer {answer[:80]!r}"
        if value >= 1:
            return Score(1.0, "right", reason=reason)
        return Score(max(0.0, value) if self.partial else 0.0, "wrong", reason=reason)


def problem(task: str, options: dict[str, Any], seed: int) -> tuple[Any, dict[str, Any]]:
    """The data set of one problem and the problem, a pure function of the arguments.

    Raises:
      ValueError: the package is missing, the task unknown, or its scorer not to be trusted.
    """
    package = _package()
    known = package.factory.DATASETS
    if task not in known:
        raise ValueError(f"task is {task!r}: use one of {', '.join(sorted(known))}")
    if task == "composite" or evaluates(known[task][0]):
        raise ValueError(
            f"task is {task!r}, whose scorer evaluates responses as Python: use another task"
        )
    dataset = package.create_dataset(task, **options, seed=seed, size=1)
    return dataset, dataset[0]


def _package() -> Any:
    try:
        return importlib.import_module(_PACKAGE)  # which the type checker may lack
    except ImportError as error:
        raise ValueError(
            "verifier reasoning_gym needs the extra `gym`: pip install 'jaxrl-vr[gym]'"
        ) from error


@functools.cache
def evaluates(task: Any) -> bool:
    """Whether the scorer of a task (a class), or code of the package it names, evaluates texts."""
    waiting = [(task.score_answer, task)]
    seen: set[Any] = set()
    while waiting:
        code, owner = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        owner = code if inspect.isclass(code) else owner
        try:
            source = inspect.getsource(code)
        except (OSError, TypeError):
            return True  # for all that can be seen
        for node in ast.walk(ast.parse(textwrap.dedent(source))):
            waiting += [(found, owner) for found in _named(node, code.__module__, owner)]
            if isinstance(node, ast.Call) and _runs_text(node, code.__module__):
                if not any(_named(node.func, code.__module__, owner)):
                    return True
    return False


def _runs_text(call: ast.Call, where: str) -> bool:
    function, name, module = call.func, "", ""
    if isinstance(function, ast.Name):  # by its own name, also where it was imported as another
        known = vars(sys.modules[where]).get(function.id)
        name = getattr(known, "__name__", function.id)
    elif isinstance(function, ast.Attribute):
        name, module = function.attr, ast.unparse(function.value)
    if name not in _EVALUATES or module in _HARMLESS.get(name, ()):
        return False
    what: ast.AST = call.args[0] if call.args else call
    while isinstance(what, ast.Subscript | ast.Attribute):
        what = what.value
    return not (isinstance(what, ast.Name) and what.id in _OF_THE_PROBLEM)


def _named(node: ast.AST, module: str, owner: type) -> Iterator[Any]:
    """The package's code that a name or an attribute may stand for, in a class of a module."""
    space = vars(sys.modules[module])
    found: list[Any] = []
    if isinstance(node, ast.Name):
        found = [space.get(node.id)]
    elif isinstance(node, ast.Attribute):
        found = [getattr(owner, node.attr, None)]
        if isinstance(node.value, ast.Name):
            found.append(getattr(space.get(node.value.id), node.attr, None))
    for code in found:
        code = inspect.unwrap(getattr(code, "__func__", code))
        if inspect.isfunction(code) or inspect.isclass(code):
            if code.__module__.startswith(_PACKAGE):
                yield code
