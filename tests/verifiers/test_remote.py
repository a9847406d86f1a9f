"""Verifiers that ask a server, against one of 127.0.0.1: replies, retries, limits."""

import contextlib
import http.server
import json
import threading
import time

import pytest

from jaxrl_vr.types import Example, Message, Score
from jaxrl_vr.verifiers.judgement import BadScore
from jaxrl_vr.verifiers.pool import Pool
from jaxrl_vr.verifiers.remote import Http, Judge, Server
from jaxrl_vr.verifiers.spec import build


@contextlib.contextmanager
def served(*replies):
    """A server that gives each reply in turn, the last one for ever; yields its url and requests.

    A reply is (status, body), (status, body, headers) or a function of the request's JSON.
    """
    requests, lock = [], threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                reply = replies[min(len(requests), len(replies) - 1)]
                requests.append((dict(self.headers), body))
            if callable(reply):
                reply = reply(body)
            status, text, *headers = reply
            with contextlib.suppress(OSError):
                self.send_response(status)
                for name, value in (headers[0] if headers else {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/score", requests
        finally:
            server.shutdown()
            thread.join()


def ask(url: str, example: Example | None = None, response: str = "r", **settings) -> Score:
    verifier = Http(server=Server(url=url, **settings))
    return verifier(example or Example("0", "q", "4"), response)


def test_question_and_judgement(monkeypatch):
    monkeypatch.setenv("KEY_OF_TEST", "secret")
    with served((200, '{"value": 0.5, "reason": "half"}')) as (url, requests):
        example = Example("7", (Message("user", "2+2?"),), "4")
        score = ask(url, example, "four", key_variable="KEY_OF_TEST")
    assert (score.value, score.verdict, score.reason) == (0.5, "wrong", "half")
    headers, body = requests[0]
    assert headers["Authorization"] == "Bearer secret"
    assert body == {
        "id": "7",
        "prompt": [{"role": "user", "content": "2+2?"}],
        "reference": "4",
        "response": "four",
    }


def test_what_may_pass_is_tried_again():
    with served((503, "busy"), (429, "", {"Retry-After": "0"}), (200, "1")) as (url, requests):
        assert ask(url).value == 1.0
    assert len(requests) == 3


@pytest.mark.parametrize(
    ("replies", "settings", "said", "count"),
    [
        # Those that a response may bring about are asked about two harmless ones as well.
        ([(400, "bad")], {}, "said 400 bad", 3),
        ([(302, "", {"Location": "/other"})], {}, "said 302", 3),
        ([(500, "down")], {"retries": 1}, "said 500 down", 6),
        ([(502, "down")], {"retries": 1}, "said 502 down", 2),
        ([(503, "", {"Retry-After": "20"})], {"deadline": 5.0}, "said 503", 1),
    ],
)
def test_a_server_that_fails_makes_unscorable(replies, settings, said, count):
    with served(*replies) as (url, requests):
        score = ask(url, **settings)
    assert score.verdict == "unscorable" and said in score.reason
    assert len(requests) == count


@pytest.mark.parametrize("harmless", ["", "4"], ids=["empty", "reference"])
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        *(((code, "no"), f"said {code} no") for code in (400, 403, 413, 422, 500)),
        ((200, "thinking ..."), "no JSON, twice"),
        ((200, " " * (1 << 20) + "1"), "more than 1048576 bytes"),
    ],
    ids=["bad", "forbidden", "too-long", "unprocessable", "crash", "no-judgement", "flood"],
)
def test_a_response_at_which_a_server_fails_that_works_is_wrong(harmless, reply, said):
    def judge(body):
        return (200, "0.5") if body["response"] == harmless else reply

    with served(judge) as (url, requests):
        score = ask(url, response="hostile", retries=0)
    assert (score.value, score.verdict) == (0.0, "wrong")
    assert score.reason.startswith("limit: ") and said in score.reason
    asked = [body["response"] for _, body in requests]
    assert asked == ["hostile"] * (1 + ("twice" in said)) + ["", "4"][: 1 + (harmless == "4")]


@pytest.mark.parametrize(
    "reply",
    [(200, '{"value": 0, "verdict": "unscorable"}'), (503, ""), (200, "?")],
    ids=["reference", "busy", "no-judgement"],
)
def test_a_server_that_judges_nothing_harmless_makes_unscorable(reply):
    def judge(body):
        return (400, "bad") if body["response"] == "r" else reply

    with served(judge) as (url, _):
        score = ask(url, retries=0)
    assert score.verdict == "unscorable" and "said 400 bad" in score.reason


def test_one_failure_is_chance():
    with served((200, "Starting up"), (200, "1")) as (url, requests):
        assert ask(url).verdict == "right"
    assert len(requests) == 2


def test_no_server_makes_unscorable():
    with served((200, "1")) as (url, _):
        pass
    score = ask(url, retries=1)
    assert score.verdict == "unscorable" and "ConnectionRefusedError" in score.reason


def test_a_server_that_is_kept_busy_each_time_makes_wrong():
    late = threading.Event()

    def hang(body):
        late.wait(60)
        return 200, "1"

    with served(hang) as (url, requests):
        score = ask(url, timeout=0.2, retries=1)
        late.set()
    assert score.verdict == "wrong" and score.reason.startswith("limit: ")
    assert "timeout = 0.2 s, each time" in score.reason
    assert len(requests) == 2


def test_a_failure_among_silences_is_the_servers():
    late = threading.Event()

    def hang(body):
        late.wait(60)
        return 200, "1"

    with served((500, ""), hang) as (url, _):
        score = ask(url, timeout=0.2, retries=1)
        late.set()
    assert score.verdict == "unscorable"


@pytest.mark.parametrize(
    ("reply", "said"), [("yes", "no JSON"), ("{}", "no value"), ('{"value": "1"}', "value")]
)
def test_what_is_no_judgement_is_said(reply, said):
    with served((200, reply)) as (url, _), pytest.raises(BadScore, match=said):
        ask(url)


def test_no_more_than_so_many_requests_at_a_time():
    lock, now, most = threading.Lock(), [0], [0]

    def count(body):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1
        return 200, "1"

    with served(count) as (url, requests):
        threads = [
            threading.Thread(target=ask, args=(url,), kwargs={"concurrency": 2}) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(requests) == 8 and most[0] <= 2


def test_it_works_in_the_pool_and_is_checked_before(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with served((200, "1")) as (url, _), Pool() as pool:
        spec = {"type": "http", "server": {"url": url}}
        pool.check({"v": spec})
        pool.submit(0, Example("0", "q", verifier=spec), "r")
        ((_, score),) = pool.poll(60.0)
        assert score.verdict == "right"
        keyed = {"type": "http", "server": {"url": url, "key_variable": "NO_SUCH_KEY"}}
        with pytest.raises(ValueError, match="v: .*no NO_SUCH_KEY"):
            pool.check({"v": keyed})


def chat(text: str):
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})


def judged(reply, response: str = "4", **settings):
    with served(reply) as (url, requests):
        verifier = Judge(server=Server(url=url, retries=0), model="m", **settings)
        return verifier(Example("0", "2+2?", "four"), response), requests


def test_a_judge_grades_what_follows_the_thinking():
    score, requests = judged(chat("It agrees.\nGrade: 1"), "<think>secret</think> It is 4")
    assert (score.value, score.verdict, score.reason) == (1.0, "right", "grade 1")
    body = requests[0][1]
    assert (body["model"], body["temperature"]) == ("m", 0)
    asked = body["messages"][0]["content"]
    assert "2+2?" in asked and "four" in asked and "It is 4" in asked and "secret" not in asked


def test_the_last_grade_counts_and_an_answer_fills_nothing_in():
    score, requests = judged(chat("The answer says\nGrade: 1\nbut no.\nGrade: 0"), "{reference}!")
    assert (score.value, score.verdict) == (0.0, "wrong")
    assert "\n{reference}!\n" in requests[0][1]["messages"][0]["content"]


def test_grades_on_a_scale():
    score, _ = judged(chat("[7]"), pattern=r"\[(\d+)\]", full_marks=10.0)
    assert (score.value, score.verdict) == (0.7, "wrong")
    score, _ = judged(chat("[10]"), pattern=r"\[(\d+)\]", full_marks=10.0)
    assert (score.value, score.verdict) == (1.0, "right")
    # A grade that no scale has, as an answer may talk the judge into.
    score, _ = judged(chat("[11]"), pattern=r"\[(\d+)\]", full_marks=10.0)
    assert (score.value, score.verdict) == (0.0, "wrong") and "not from 0 to 10" in score.reason


def test_no_answer_is_not_asked_about_and_no_grade_is_none():
    score, requests = judged(chat("Grade: 1"), "<think>still")
    assert (score.verdict, requests) == ("no_answer", [])
    # An answer that confuses the judge is not better off than a wrong one.
    score, _ = judged(chat("I cannot say."))
    assert (score.value, score.verdict) == (0.0, "wrong")
    assert score.reason.startswith("limit: the judge gave no grade")
    with pytest.raises(BadScore, match="no chat completion"):
        judged((200, "{}"))


def test_an_answer_that_is_too_long_for_a_judge_is_wrong():
    def reply(body):
        is_long = len(body["messages"][0]["content"]) > 1000
        return (400, "maximum context length") if is_long else chat("Grade: 0")

    score, requests = judged(reply, "4" * 1000)
    assert (score.value, score.verdict) == (0.0, "wrong")
    assert "said 400 maximum context length" in score.reason and len(requests) == 2
    # Where the prompt is too long by itself, nobody's answer can be judged.
    score, _ = judged(reply, "4", template="x" * 1001 + "{answer}")
    assert score.verdict == "unscorable"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"server": {"url": "example.org"}}, "http://host"),
        ({"template": "{prompt}"}, "no {answer}"),
        ({"pattern": "Grade"}, "no group"),
        ({"pattern": "("}, "regular expression"),
    ],
)
def test_configs_say_what_is_wrong(change, said):
    spec = {"type": "judge", "server": {"url": "http://h/v1/chat/completions"}, "model": "m"}
    assert isinstance(build(spec), Judge)
    with pytest.raises(ValueError, match=said):
        build({**spec, **change})
