"""Command verifier: question and judgement as JSON, in the sandbox and under its limits."""

import json

import pytest

from jaxrl_vr.types import Example, Message
from jaxrl_vr.verifiers.command import Command
from jaxrl_vr.verifiers.judgement import BadScore
from jaxrl_vr.verifiers.pool import Pool
from jaxrl_vr.verifiers.sandbox import Limits, SandboxFailed
from jaxrl_vr.verifiers.sandbox_level import sandbox_level
from jaxrl_vr.verifiers.spec import build

LIMITS = Limits(cpu=1.0, wall=60.0)


@pytest.fixture(autouse=True, scope="module")
def isolated():
    try:
        sandbox_level()
    except SandboxFailed as error:
        pytest.skip(f"no level of isolation holds here: {error}")


def shell(script: str, **kwargs) -> Command:
    return Command(argv=("sh", "-c", script), limits=LIMITS, **kwargs)


def test_the_command_gets_the_question_and_its_judgement_is_the_score(tmp_path):
    example = Example("7", (Message("user", "2+2?"),), "4")
    asked = shell('cat > q; printf \'{"value": 0.5, "reason": "%s"}\' "$(wc -c < q)"')
    question = {
        "id": "7",
        "prompt": [{"role": "user", "content": "2+2?"}],
        "reference": "4",
        "response": "four ü",
    }
    score = asked(example, "four ü")
    assert (score.value, score.verdict) == (0.5, "wrong")
    assert score.reason == str(len(json.dumps(question)))


@pytest.mark.parametrize(
    ("reply", "value", "verdict"),
    [
        ("1", 1.0, "right"),
        ("true", 1.0, "right"),
        ("0.25", 0.25, "wrong"),
        ('{"value": 2, "components": {"a": 1}}', 2.0, "right"),
        ('{"value": 0, "verdict": "no_answer"}', 0.0, "no_answer"),
        ('{"value": 0, "verdict": "unscorable", "reason": "r"}', 0.0, "unscorable"),
    ],
)
def test_replies(reply, value, verdict):
    score = shell(f"echo '{reply}'")(Example("0", "q"), "r")
    assert (score.value, score.verdict) == (value, verdict)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo yes", "no JSON"),
        ("true", "no JSON"),
        ("echo '{}'", "no value"),
        ('echo \'{"value": 1, "score": 1}\'', "unknown"),
        ("echo 1e300", "finite number"),
        ('echo \'{"value": 1, "verdict": "good"}\'', "verdict"),
        ("exit 3", "exit status 3"),
    ],
)
def test_what_is_no_judgement_is_said(script, said):
    with pytest.raises(BadScore, match=said):
        shell(script)(Example("0", "q"), "r")


FAILS = """
import json, sys
said = json.load(sys.stdin)
if said["response"] in HARMLESS:
    print(0.5)
elif said["response"] == "exits":
    raise SystemExit("cannot read that")
elif said["response"] == "says":
    print("hm")
elif said["response"] == "more":
    print(1e300)
"""


@pytest.mark.parametrize("harmless", ["", "4"], ids=["empty", "reference"])
@pytest.mark.parametrize(
    ("response", "said"),
    [("exits", "exit status 1"), ("says", "no JSON"), ("more", "finite"), ("?", "no JSON")],
)
def test_a_response_that_breaks_a_command_that_works_is_wrong(harmless, response, said):
    script = FAILS.replace("HARMLESS", repr([harmless]))
    verifier = Command(argv=("python3", "-c", script), limits=LIMITS)
    score = verifier(Example("0", "q", "4"), response)
    assert (score.value, score.verdict) == (0.0, "wrong")
    assert score.reason.startswith("limit: ") and score.reason.endswith(", twice")
    assert said in score.reason
    broken = Command(argv=("python3", "-c", FAILS.replace("HARMLESS", "[]")), limits=LIMITS)
    with pytest.raises(BadScore, match=said):
        broken(Example("0", "q", "4"), response)


def test_a_bad_reference_is_not_blamed_on_a_response():
    script = (
        "import json, sys; said = json.load(sys.stdin)\n"
        "print(float(int(said['response']) == int(said['reference'])))"
    )
    verifier = Command(argv=("python3", "-c", script), limits=LIMITS)
    assert verifier(Example("0", "q", "4"), "4").verdict == "right"
    score = verifier(Example("0", "q", "4"), "four")
    assert (score.verdict, score.reason) == ("wrong", "limit: python3 failed: exit status 1, twice")
    with pytest.raises(BadScore, match="exit status 1"):
        verifier(Example("0", "q", "four"), "4")


def test_a_command_that_is_missing_is_said():
    with pytest.raises(BadScore, match="no-such-checker failed: FileNotFoundError"):
        Command(argv=("no-such-checker",), limits=LIMITS)(Example("0", "q"), "r")


def test_limits_hold():
    score = shell("while true; do :; done")(Example("0", "q"), "r")
    assert (score.verdict, score.reason) == ("wrong", "limit: cpu = 1 s of CPU time")
    score = shell("kill -11 $$")(Example("0", "q"), "r")
    assert (score.verdict, score.reason) == ("wrong", "limit: sh was ended by signal 11, twice")


def test_it_sees_the_folders_that_it_is_given_and_writes_to_none(tmp_path):
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    (tmp_path / "answer").write_text("1")
    (tmp_path / "answer").chmod(0o644)
    given = shell(f"cat {tmp_path}/answer", readable=(str(tmp_path),))
    assert given(Example("0", "q"), "r").value == 1.0
    with pytest.raises(BadScore):
        shell(f"cat {tmp_path}/answer")(Example("0", "q"), "r")
    with pytest.raises(BadScore):
        shell(f"echo 1 > {tmp_path}/answer2 && echo 1", readable=(str(tmp_path),))(
            Example("0", "q"), "r"
        )
    assert not (tmp_path / "answer2").exists()


def test_it_is_checked_before_a_run_and_works_in_the_pool():
    spec = {"type": "command", "argv": ["sh", "-c", "cat > /dev/null; echo 1"]}
    with Pool() as pool:
        pool.check({"v": spec})
        pool.submit(0, Example("0", "q", verifier=spec), "r")
        ((_, score),) = pool.poll(60.0)
        assert score.value == 1.0
        with pytest.raises(ValueError, match="v: .*no folder '/no/such'"):
            pool.check({"v": {**spec, "readable": ["/no/such"]}})
    with pytest.raises(ValueError, match="whole path"):
        build({**spec, "readable": ["lean"]})
    with pytest.raises(ValueError, match="argv"):
        build({**spec, "argv": []})
