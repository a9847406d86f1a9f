"""Programs against tests: the forms of tests, what is compared, verdicts, fractions and limits."""

import json
import os
import sys

import pytest

from jaxrl_vr.types import Example, Message, Score
from jaxrl_vr.verifiers.code_reference import BadReference, Calls, Script, Stdin, read_tests
from jaxrl_vr.verifiers.code_tests import CodeTests, same_output
from jaxrl_vr.verifiers.fence import last_fence
from jaxrl_vr.verifiers.pool import Pool
from jaxrl_vr.verifiers.sandbox import Limits, SandboxFailed
from jaxrl_vr.verifiers.sandbox_level import SandboxRefused, sandbox_level
from jaxrl_vr.verifiers.spec import build

LIMITS = Limits(cpu=2.0, wall=60.0)  # the clock is generous, as the machine may be busy
WHOLE = CodeTests(extract="whole", limits=LIMITS)
FRACTION = CodeTests(extract="whole", reward="fraction", limits=LIMITS)


@pytest.fixture(autouse=True, scope="module")
def isolated():
    try:
        sandbox_level()
    except SandboxFailed as error:
        pytest.skip(f"no level of isolation holds here: {error}")


def verify(program: str, tests: object, verifier: CodeTests = WHOLE) -> Score:
    reference = tests if isinstance(tests, str) else json.dumps(tests)
    return verifier(Example("0", "q", reference), program)


def value(program: str, tests: object, verifier: CodeTests = WHOLE) -> float:
    score = verify(program, tests, verifier)
    assert score.verdict == ("right" if score.value == 1.0 else "wrong"), score
    return score.value


# Which program


def test_the_last_closed_block_of_python_is_the_program():
    assert last_fence("```python\r\na = 'x\u2028y\x0c'\r\n```") == "a = 'x\u2028y\x0c'\n"
    assert last_fence("```python\na\n```\ntext\n```py\nb\n```\n```\nc\n```") == "b\n"
    assert last_fence("```\na\n```\n```json\nb\n```") == "a\n"
    assert last_fence("~~~~python\n```\n~~~\na\n~~~~") == "```\n~~~\na\n"
    assert last_fence("```python\na\n```\n```python\nb") == "a\n"
    assert last_fence("```python\nb") is None
    assert last_fence("no block") is None


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("```python\ndef f(): return 1\n```", "right"),
        ("<think>\n```python\ndef f(): return 1\n```\n</think>", "no_answer"),
        ("<think>\n```python\ndef f(): return 1\n```", "no_answer"),
        ("<think>hm</think>\n```python\ndef f(): return 1\n```", "right"),
        ("```python\ndef f(): return 1\n```\nor\n```python\ndef f(): return 2\n```", "wrong"),
        ("```python\n\n```", "no_answer"),
        ("def f(): return 1", "no_answer"),
        ("", "no_answer"),
    ],
)
def test_response(response, expected):
    verifier = CodeTests(limits=LIMITS)
    score = verifier(Example("0", "q", "assert f() == 1"), response)
    assert (score.verdict, score.value) == (expected, float(expected == "right"))


def test_nothing_is_clipped():
    long = "#" * 300_000
    assert value(f"def f(): return 1\n{long}", "assert f() == 1") == 1.0


# Which tests

DOUBLE = "def double(x):\n    return 2 * x\n"
CASES = {
    "asserts": "assert double(2) == 4\nassert double('a') == 'aa'",
    "list of asserts": ["assert double(2) == 4", "assert double(-1) == -2"],
    "mbpp": {"test_list": ["assert double(2) == y"], "test_setup_code": "y = 4"},
    "humaneval": {
        "prompt": "def double(x):\n    'Twice x.'\n",
        "entry_point": "double",
        "test": "def check(candidate):\n    assert True\n    assert candidate(2) == 4\n",
    },
    "check called": {"test": "def check(f):\n  assert f(2) == 4\ncheck(double)"},
    "pytest": "def test_it():\n    assert double(2) == 4\n",
    "unittest": "import unittest\nfrom solution import double\n"
    "class T(unittest.TestCase):\n"
    "    def test_it(self):\n        self.assertEqual(double(2), 4)\n"
    "if __name__ == '__main__':\n    unittest.main()\n",
    "livecodebench": {
        "public_test_cases": json.dumps([{"input": "2", "output": "4", "testtype": "functional"}]),
        "metadata": json.dumps({"func_name": "double"}),
    },
    "apps": {"fn_name": "double", "inputs": [[2], ["a"]], "outputs": [[4], ["aa"]]},
    "taco": {"input_output": json.dumps({"fn_name": "double", "inputs": [[2]], "outputs": [4]})},
}


@pytest.mark.parametrize("form", CASES)
def test_each_form_passes_a_right_program_and_fails_a_wrong_one(form):
    assert value(DOUBLE, CASES[form]) == 1.0
    assert value(DOUBLE.replace("2 * x", "x"), CASES[form]) == 0.0


@pytest.mark.parametrize(
    "tests",
    [
        [{"input": "3 4\n", "output": "7\n"}],
        {"inputs": ["3 4\n", "1 1"], "outputs": ["7", "2"]},
        {"public_test_cases": [{"input": "3 4", "output": "7", "testtype": "stdin"}]},
        {"stdin": [{"input": ["3 4"], "output": ["7"]}]},
    ],
)
def test_standard_input(tests):
    assert value("a, b = map(int, input().split())\nprint(a + b)", tests) == 1.0
    assert value("print(7)\nprint(8)", tests) == 0.0


def test_forms_are_read():
    assert read_tests("assert f() == 1") == Script(("assert f() == 1",))
    assert read_tests('[{"input": "1", "output": "2"}]') == Stdin((("1", "2"),))
    wrapped = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[3], [4]]}
    assert read_tests(json.dumps(wrapped)) == Calls("f", (([1], 3), ([2], 4)))
    plain = {"fn_name": "f", "inputs": [[1]], "outputs": [[3, 4]]}
    assert read_tests(json.dumps(plain)) == Calls("f", (([1], [3, 4]),))
    lines = [{"input": '1\n"a"', "output": "null", "testtype": "functional"}]
    both = {"fn_name": "f", "test_cases": lines}
    assert read_tests(json.dumps(both)) == Calls("f", (([1, "a"], None),))


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ("", "no tests"),
        ("[]", "no tests"),
        ("7", "int"),
        ('{"question": 1}', "question"),
        ('{"inputs": [1], "outputs": []}', "1 inputs and 0 outputs"),
        ('[{"input": "1", "output": "1", "testtype": "functional"}]', "func_name"),
        ('{"private_test_cases": "eJxrYJ"}', "pickle"),
        ('{"test_list": [1]}', "test_list"),
    ],
)
def test_what_is_no_test_is_said(tests, said):
    with pytest.raises(BadReference, match=said):
        read_tests(tests)
    score = verify("x = 1", tests)
    assert (score.verdict, score.value) == ("unscorable", 0.0)


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ("assert f( == 1", "no Python"),
        ("x = 1", "no test"),
        ("assert True", "no test"),
        ("assert 1 + 1 == 2", "do not call the program"),
        ({"prompt": "", "entry_point": "f", "test": "def check(c):\n    assert True"}, "no test"),
    ],
)
def test_tests_that_judge_nothing_are_unscorable(tests, said):
    score = verify("def f(): return 1", tests)
    assert score.verdict == "unscorable" and said in score.reason


# What is compared


@pytest.mark.parametrize(
    ("returned", "test"),
    [
        ("(1, [2.5, None], {'a': {True}})", "f() == (1, [2.5, None], {'a': {True}})"),
        ("10 ** 5000", "f() == 10 ** 5000"),
        ("float('inf')", "f() == float('inf')"),
        ("float('nan')", "f() != f()"),
        ("b'\\xff' + 'ü\\ud800'.encode('utf-8', 'surrogatepass')", "f()[0] == 255"),
        ("'ü\\ud800'", "f() == 'ü\\ud800'"),
        ("frozenset({1}), range(3), 1j, bytearray(b'a')", "f()[1] == range(3) and f()[2] == 1j"),
        ("__import__('collections').Counter('aab')", "f() == {'a': 2, 'b': 1}"),
        ("__import__('decimal').Decimal('1.50')", "str(f()) == '1.50'"),
        ("__import__('fractions').Fraction(1, 3)", "f() * 3 == 1"),
        ("__import__('datetime').date(2020, 1, 2)", "f().year == 2020"),
        ("__import__('collections').namedtuple('P', 'x y')(1, 2)", "f().y == 2 and f() == (1, 2)"),
        ("(i * i for i in range(3))", "list(f()) == [0, 1, 4]"),
        ("type('L', (list,), {})([1, 2])", "f() == [1, 2] and len(f()) == 2 and f()[0] == 1"),
        ("lambda x: x + 1", "f()(2) == 3"),
        ("print", "f() != 3"),
    ],
)
def test_values_cross_as_what_they_are(returned, test):
    assert verify(f"def f(): return {returned}", f"assert {test}").reason == "1 tests passed"


def test_classes_exceptions_and_callbacks_of_the_program_work_in_tests():
    program = """
class Empty(ValueError):
    pass

class Stack:
    def __init__(self, items=()):
        self.items = list(items)
    def push(self, x):
        self.items.append(x)
        return self
    def pop(self):
        if not self.items:
            raise Empty("nothing", 3)
        return self.items.pop()
    def __eq__(self, other):
        return self.items == other.items

def apply(function, x):
    return function(x)
"""
    tests = """
s = Stack()
assert s.push(1) is s
assert s.items == [1]
assert s == Stack([1]) and s != Stack([2])
assert isinstance(s, Stack) and not isinstance(3, Stack)
assert s.pop() == 1
try:
    s.pop()
    assert False
except Empty as error:
    assert isinstance(error, ValueError) and error.args == ("nothing", 3)
assert apply(lambda x: x * 3, 4) == 12
assert apply(function=len, x=[1, 2]) == 2
"""
    assert verify(program, tests).reason == "8 tests passed"


def test_arguments_are_changed_as_in_python():
    program = """
def sort(x):
    x.sort()
def drop(x):
    x.pop()
    return len(x)
"""
    tests = """
a = [3, 1, 2]
sort(a)
assert a == [1, 2, 3]
assert drop(a) == 2
assert a == [1, 2]
for n in range(2):
    drop(a)
assert a == []
"""
    assert verify(program, tests).verdict == "right"


def test_a_body_continues_the_head_that_the_task_gives():
    task = CASES["humaneval"]
    assert value("    return 2 * x\n", task) == 1.0
    assert value("from __future__ import annotations\n" + DOUBLE, task) == 1.0


def test_check_alone_is_for_the_function_that_the_prompt_heads():
    task, response = CASES["humaneval"], "    return 2 * x\n"
    example = Example("0", task["prompt"], task["test"])
    assert WHOLE(example, response).verdict == "right"
    assert WHOLE(example, "    return x\n").verdict == "wrong"
    chat = Example("0", (Message("user", f"Complete:\n\n{task['prompt']}"),), task["test"])
    assert WHOLE(chat, DOUBLE).verdict == "right"
    assert WHOLE(Example("0", "q", task["test"]), DOUBLE).verdict == "unscorable"


def test_helpers_that_the_task_gives_are_its_own():
    task = {
        "prompt": "def holds(x):\n    return x == 7\n\ndef f():\n    'Makes holds true.'\n",
        "entry_point": "f",
        "test": "def check(candidate):\n    assert holds(candidate())",
    }
    assert value("def f(): return 7", task) == 1.0
    assert value("def holds(x): return True\ndef f(): return 0", task) == 0.0


def test_a_method_of_solution_is_the_function():
    program = "class Solution:\n    def double(self, x):\n        return 2 * x"
    assert value(program, CASES["livecodebench"]) == 1.0


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1 2\n3\n", "1  2 \n3", True),
        ("1 2 3", "1 2\n3", False),
        ("0.30000000000000004", "0.3", True),
        ("0.31", "0.3", False),
        ("1e400", "1e401", False),
        ("12345678901234567891", "12345678901234567890", False),
        ("1", "1.0", True),
        ("nan", "0.5", False),
        ("", "", True),
        ("a", "", False),
    ],
)
def test_outputs_agree_but_for_white_space_and_last_digits(got, expected, same):
    assert same_output(got, expected, 1e-9) is same


@pytest.mark.parametrize(
    ("returned", "expected", "passes"),
    [
        ("(1, (2, 3))", [1, [2, 3]], True),
        ("0.1 + 0.2", 0.3, True),
        ("0.1 + 0.201", 0.3, False),
        ("True", 1, False),
        ("1.0", 1, True),
        ("10**400", 10**400 + 1, False),
        ("{1: (2,)}", {"1": [2]}, True),
        ("None", None, True),
        ("'1'", 1, False),
    ],
)
def test_results_of_calls(returned, expected, passes):
    tests = {"fn_name": "f", "tests": [{"input": [], "output": expected}]}
    assert value(f"def f(): return {returned}", tests) == float(passes)


# Scores


def test_a_fraction_is_told_and_is_wrong_unless_it_is_all():
    tests = ["assert f(1) == 1", "assert f(2) == 4", "assert f(3) == 9", "assert f(4) == 16"]
    score = verify("def f(x): return x * x if x != 2 else 0", tests, FRACTION)
    assert (score.value, score.verdict) == (0.75, "wrong")
    assert score.reason == "test 2, assert f(2) == 4: AssertionError"
    assert verify("def f(x): return x * x", tests, FRACTION).verdict == "right"
    assert verify("def f(x): return x * x if x != 2 else 0", tests).value == 0.0


def test_a_fraction_of_check_and_of_standard_input():
    check = (
        "def check(c):\n    n = 2\n    assert True\n    assert c(n) == 4\n    assert c(3) == 9\n"
    )
    record = {"prompt": "", "entry_point": "f", "test": check}
    assert value("def f(x): return 4", record, FRACTION) == 0.5
    cases = [{"input": str(n), "output": str(n % 2)} for n in range(4)]
    score = verify("print(int(input()) // 3)", cases, FRACTION)
    assert (score.value, score.reason) == (0.75, "test 2: printed '0', expected '1'")


def test_a_program_that_ends_early_keeps_what_it_had_earned():
    tests = ["assert f(0) == 0", "assert f(1) == 1", "assert f(2) == 2"]
    program = "import os\ndef f(x):\n    if x == 1: os._exit(0)\n    return x"
    score = verify(program, tests, FRACTION)
    assert score.value == pytest.approx(1 / 3)
    assert score.reason.endswith("the program ended; the program ended with exit status 0")


def test_the_reason_names_the_exception_and_the_exit():
    assert "ZeroDivisionError: division by zero" in verify("1 / 0", "assert f() == 1").reason
    cases = [{"input": "", "output": "1"}]
    assert verify("print(1)\nraise KeyError(3)", cases).reason == (
        "test 1: the program ended with exit status 1: KeyError: 3"
    )
    assert verify("print(1)\nimport os\nos.kill(os.getpid(), 9)", cases).reason == (
        "test 1: the program was ended by signal 9"
    )
    assert "SyntaxError" in verify("print(1", cases).reason


def test_the_end_of_a_script_is_that_of_python():
    cases = [{"input": "", "output": "a b c"}]
    program = """
import atexit, sys, threading
atexit.register(lambda: print("c"))
print("a", end=" ")
threading.Thread(target=lambda: print("b", end=" ")).start()
sys.exit()
"""
    assert value(program, cases) == 1.0
    assert value("print('a b c'); exit('no')", cases) == 0.0
    assert value("if __name__ == '__main__': print(open(0).read() + 'a b c')", cases) == 1.0


# Limits


@pytest.mark.parametrize(
    ("program", "wall", "said"),
    [
        ("def f():\n    while True: pass", 60.0, "limit: cpu = 1 s"),
        ("def f():\n    import time; time.sleep(600)", 1.0, "limit: wall = 1 s"),
        ("import time; time.sleep(600)", 1.0, "limit: wall = 1 s"),
        ("def f(): return bytes(1 << 40)", 60.0, "MemoryError"),
    ],
)
def test_what_exceeds_a_limit_is_wrong(program, wall, said):
    verifier = CodeTests(extract="whole", limits=Limits(cpu=1.0, wall=wall))
    score = verify(program, "assert f() == 1", verifier)
    assert score.verdict == "wrong" and said in score.reason, score
    cases = [{"input": "", "output": "1"}]
    assert verify(f"{program}\nf()", cases, verifier).verdict == "wrong"


def test_all_runs_together_have_a_limit():
    cases = [{"input": "", "output": "1"}] * 50
    verifier = CodeTests(extract="whole", limits=LIMITS, total=1.0)
    score = verify("import time; time.sleep(0.3); print(1)", cases, verifier)
    assert score.verdict == "wrong"
    assert score.reason.startswith("limit: test ") and "total = 1 s" in score.reason


def test_a_loop_in_the_tests_is_a_limit_as_well():
    verifier = CodeTests(extract="whole", limits=Limits(cpu=1.0, wall=30.0))
    program = "def f():\n    while True: yield 1"
    score = verify(program, "assert sum(f()) == 3", verifier)
    assert score.verdict == "wrong" and score.reason.startswith("limit: cpu")


def test_much_output_and_much_input():
    cases = [{"input": "7 " * 500_000, "output": "3500000"}]
    assert value("print(sum(map(int, input().split())))", cases) == 1.0
    small = CodeTests(extract="whole", limits=Limits(cpu=5.0, wall=60.0, output=1 << 16))
    score = verify("print('x' * 70_000)", [{"input": "", "output": "x" * 70_000}], small)
    assert score.reason == "limit: test 1: output = 65536 bytes"
    assert value("def f(x): return x", "assert f([1] * 200_000) == [1] * 200_000") == 1.0


# In the pool, and where nothing holds


def test_the_pool_scores_each_response_once_whatever_it_does():
    spec = {"type": "code_tests", "limits": {"cpu": 1.0, "wall": 60.0}}
    programs = [
        "def f(): return 1",
        "def f(): return 2",
        "def f():\n    while True: pass",
        "import os; os.kill(os.getppid(), 9)",
        "def f(): return 1",
    ]
    with Pool(workers=2) as pool:
        pool.check({"data.code": spec})
        for i, program in enumerate(programs):
            example = Example(str(i), "q", "assert f() == 1", verifier=spec)
            pool.submit(i, example, f"```python\n{program}\n```")
        done = []
        while pool.pending:
            done += pool.poll(10.0)
    assert sorted(job for job, _ in done) == [0, 1, 2, 3, 4]
    verdicts = {job: score.verdict for job, score in done}
    assert verdicts == {0: "right", 1: "wrong", 2: "wrong", 3: "wrong", 4: "right"}


def test_a_verifier_may_take_longer_than_the_deadline_of_the_pool():
    spec = {"type": "code_tests", "limits": {"cpu": 5.0, "wall": 60.0}}
    response = "```python\nimport time\ntime.sleep(1)\ndef f(): return 1\n```"
    with Pool(deadline=0.5) as pool:
        pool.submit(0, Example("0", "q", "assert f() == 1", verifier=spec), response)
        done = []
        while pool.pending:
            done += pool.poll(10.0)
    assert [score.verdict for _, score in done] == ["right"]


def test_it_refuses_where_nothing_holds_and_runs_if_told_so():
    refusing = CodeTests(extract="whole", limits=LIMITS, levels=())
    with pytest.raises(SandboxRefused, match="install bubblewrap.*unsafe = true"):
        verify("def f(): return 1", "assert f() == 1", refusing)
    with pytest.raises(SandboxRefused):
        refusing.load()
    unsafe = CodeTests(extract="whole", limits=LIMITS, levels=(), unsafe=True)
    assert value("def f(): return 1", "assert f() == 1", unsafe) == 1.0
    assert value("def f(): return 2", "assert f() == 1", unsafe) == 0.0


def test_a_refusal_is_known_before_the_run():
    spec = {"type": "code_tests", "levels": []}
    with Pool() as pool, pytest.raises(ValueError, match="data.code.*cannot be isolated"):
        pool.check({"data.code": spec})


def test_rewards_are_the_same_in_every_run():
    # The order of a set of strings, and what random gives, are fixed.
    program = "import random\nprint(list({'a', 'b', 'c', 'd'}), random.random())"
    first, second = (verify(program, [{"input": "", "output": "?"}]).reason for _ in range(2))
    assert first == second and "printed \"['" in first


def test_spec_builds_it_and_it_may_be_a_part():
    assert build({"type": "code_tests", "reward": "fraction"}) == CodeTests(reward="fraction")
    parts = [{"verifier": {"type": "code_tests"}}, {"verifier": {"type": "format"}, "weight": 0.1}]
    weighted = build({"type": "weighted", "parts": parts})
    example = Example("0", "q", "assert f() == 1")
    assert weighted(example, "```python\ndef f(): return 1\n```").verdict == "right"
    assert weighted.answer(example, "```python\nx\n```") == "x\n"


def test_this_process_is_as_it_was():
    environment, folder, path = dict(os.environ), os.getcwd(), list(sys.path)
    verify("def f(): return 1", "assert f() == 1")
    assert (dict(os.environ), os.getcwd(), list(sys.path)) == (environment, folder, path)
