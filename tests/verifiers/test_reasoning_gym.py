"""Which scorers evaluate a response, told by their code. The tasks themselves: data/test_gym.py."""

import importlib

import pytest

from jaxrl_vr.types import Example
from jaxrl_vr.verifiers.pool import Pool
from jaxrl_vr.verifiers.reasoning_gym import evaluates

HELPERS = """
def parse_expr(text):
    return text.split()

def run(text):
    return eval(text)

class Cube:
    def turn(self, moves):
        return exec(moves)
"""
TASKS = """
import json
import re
import subprocess

import sympy
from sympy.parsing.sympy_parser import parse_expr as parse

import reasoning_gym_helpers as helpers
from reasoning_gym_helpers import Cube, parse_expr


def outer(text):
    return inner(text)


def inner(text):
    return compile(text, "x", "eval")


class Base:
    def score_answer(self, answer, entry):
        return self.convert(answer) == entry["answer"]

    def convert(self, answer):
        return int(answer)


class Inherits(Base):
    pass


class Overrides(Base):
    def convert(self, answer):
        return eval(answer)


CLASSES
"""
BODIES = {
    "compares": ('return float(answer.strip() == entry["answer"])', False),
    "reads_json": ("return json.loads(answer) == 1", False),
    "searches": ('return re.compile("[0-9]").match(answer) is not None', False),
    "own_parser": ("return parse_expr(answer) == []", False),
    "of_the_problem": ('return eval(entry["metadata"]["expression"]) == int(answer)', False),
    "says_eval": ('"""Does not eval(answer)."""\n        return 0.0', False),
    "evaluates": ("return eval(answer)", True),
    "evaluates_a_part": ("return eval(answer.split()[0])", True),
    "spaced": ("return eval (\n            answer\n        )", True),
    "by_a_function": ("return outer(answer)", True),
    "by_a_module": ("return helpers.run(answer)", True),
    "by_a_method": ("return self.help(answer)", True),
    "by_a_static_method": ("return self.help_all(answer)", True),
    "by_a_class": ("return Cube().turn(answer)", True),
    "by_another_name": ("return parse(answer)", True),
    "by_builtins": ('return __builtins__["x"].eval(answer)', True),
    "sympy": ("return sympy.sympify(answer)", True),
    "sympy_by_the_way": ("return sympy.simplify(answer) == 0", True),
    "program": ("return subprocess.run(answer, shell=True)", True),
}
CLASS = """
class {name}:
    def score_answer(self, answer, entry):
        {body}

    def help(self, text):
        return exec(text)

    @staticmethod
    def help_all(text):
        return exec(text)

    def make(self):
        return eval("1 + 1")
"""


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    classes = "".join(CLASS.format(name=name, body=body) for name, (body, _) in BODIES.items())
    (tmp_path / "reasoning_gym_helpers.py").write_text(HELPERS)
    (tmp_path / "reasoning_gym_tasks.py").write_text(TASKS.replace("CLASSES", classes))
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module("reasoning_gym_tasks")


def test_what_evaluates_a_response_is_found_behind_calls(tasks):
    expected = {name: runs for name, (_, runs) in BODIES.items()}
    expected |= {"Base": False, "Inherits": False, "Overrides": True}
    assert {name: evaluates(getattr(tasks, name)) for name in expected} == expected


def test_a_scorer_whose_code_is_not_to_be_had_is_not_trusted(tasks):
    space = {"__name__": "reasoning_gym_tasks"}
    exec("class Hidden:\n    def score_answer(self, answer, entry):\n        return 1.0", space)
    assert evaluates(space["Hidden"])


@pytest.mark.parametrize(
    ("type", "package", "extra"),
    [("json_schema", "jsonschema", "schema"), ("reasoning_gym", "reasoning_gym", "gym")],
)
def test_a_missing_package_is_said_before_the_first_answer(
    type, package, extra, tmp_path, monkeypatch
):
    (tmp_path / f"{package}.py").write_text("raise ImportError('not here')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = {"type": "weighted", "parts": [{"verifier": {"type": type}}]}
    with Pool(workers=1) as pool:
        with pytest.raises(ValueError) as error:
            pool.check({"data.x.verifier": spec})
        assert str(error.value) == (
            f"data.x.verifier: the verifier does not load: verifier {type} needs the extra "
            f"`{extra}`: pip install 'jaxrl-vr[{extra}]'"
        )
        pool.submit(0, Example("0", "q", "{}", verifier=spec), "1")
        ((_, score),) = pool.poll(60.0)
        assert score.verdict == "unscorable"
