"""SQL verifier: rows compared, and what a query may not do."""

import json

import pytest

from jaxrl_vr.types import Example, Score
from jaxrl_vr.verifiers.spec import build
from jaxrl_vr.verifiers.sql import Sql, has_order

SCRIPT = """
create table people (name text, age integer, height real);
insert into people values ('Ann', 30, 1.7), ('Bob', 20, 1.8), ('Cid', 20, null);
"""
WHOLE = Sql(extract="whole")


def verify(query: str, reference: str, script: object = SCRIPT, verifier: Sql = WHOLE) -> Score:
    given = json.dumps({"script": script, "query": reference})
    return verifier(Example("0", "q", given), query)


@pytest.mark.parametrize(
    ("query", "reference", "verdict"),
    [
        ("select name from people", "select name from people", "right"),
        ("select name n from people order by age, name", "select name from people", "right"),
        ("select name from people limit 2", "select name from people", "wrong"),
        ("select name, age from people", "select name from people", "wrong"),
        ("select age from people", "select distinct age from people", "wrong"),
        ("select upper(name) from people", "select name from people", "wrong"),
        ("select name from people", "select name from people order by name desc", "wrong"),
        (
            "select name from people order by 1 desc",
            "select name from people order by name desc",
            "right",
        ),
        ("select 0.1 + 0.2", "select 0.3", "right"),
        ("select avg(age) from people", "select 70 / 3.0", "right"),
        ("select 20.0", "select 20", "right"),
        ("select '20'", "select 20", "wrong"),
        ("select null", "select 0", "wrong"),
        ("with r(n) as (select 1 union select n + 1 from r where n < 3) select n from r",
         "values (1), (2), (3)", "right"),
        ("select nothing from people", "select name from people", "wrong"),
        ("selec name", "select name from people", "wrong"),
        ("select 1; select 2", "select 2", "wrong"),
    ],
)  # fmt: skip
def test_rows_decide(query, reference, verdict):
    score = verify(query, reference)
    assert (score.verdict, score.value) == (verdict, float(verdict == "right")), score


@pytest.mark.parametrize(
    "query",
    [
        "delete from people",
        "insert into people values ('x', 1, 1)",
        "drop table people",
        "create table t (x)",
        "update people set age = 0",
        "pragma table_info(people)",
        "attach database '/tmp/x' as x",
        "vacuum into '/tmp/x'",
        "select load_extension('x')",
        "select random()",
        "begin",
    ],
)
def test_a_query_only_reads(query):
    score = verify(query, "select name from people where 0")
    assert score.verdict == "wrong", score


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "with recursive r(n) as (select 1 union all select n + 1 from r) select max(n) from r",
            "limit: seconds = 0.2",
        ),
        (
            "with recursive r(n) as (select 1 union all select n + 1 from r) select n from r",
            "limit: rows = 100",
        ),
        ("select count(*) from people, people, people, people, people, people, people, people, "
         "people, people, people, people, people, people, people, people, people",
         "limit: seconds = 0.2"),
        ("select length(hex(zeroblob(1000000000)))", "too big"),
    ],
)  # fmt: skip
def test_time_rows_and_sizes_are_limited(query, said):
    verifier = Sql(extract="whole", seconds=0.2, rows=100)
    score = verify(query, "select 1", verifier=verifier)
    assert score.verdict == "wrong" and said in score.reason, score


def test_several_databases_have_to_agree():
    scripts = [SCRIPT, SCRIPT + "insert into people values ('Dan', 40, 2.0);"]
    assert verify("select count(*) from people", "select count(*) from people", scripts).value == 1
    guessed = verify("select 3", "select count(*) from people", scripts)
    assert guessed.verdict == "wrong" and guessed.reason.startswith("database 2")


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("select 1", "no JSON"),
        ("[]", "no object"),
        ('{"query": "select 1"}', "script"),
        ('{"script": "", "query": " "}', "query"),
        ('{"script": "create tabel x", "query": "select 1"}', "syntax error"),
        ('{"script": "", "query": "select x from y"}', "no such table"),
    ],
)
def test_a_bad_reference_is_unscorable(reference, said):
    score = WHOLE(Example("0", "q", reference), "select 1")
    assert score.verdict == "unscorable" and said in score.reason


def test_the_query_is_the_last_block_of_sql():
    example = Example("0", "q", json.dumps({"script": SCRIPT, "query": "select 2"}))
    verifier = build({"type": "sql"})
    assert verifier(example, "```sql\nselect 1\n```\n```sql\nselect 2\n```").verdict == "right"
    assert verifier(example, "select 2").verdict == "no_answer"
    assert verifier(example, "<think>```sql\nselect 2\n```").verdict == "no_answer"


def test_an_order_counts_where_it_is_the_outermost():
    assert has_order("select a from b order by a")
    assert has_order("select a from b ORDER\n BY a")
    assert not has_order("select * from (select a from b order by a)")
    assert not has_order("select rank() over (order by a) from b")
    assert not has_order("select ' order by ' from b -- order by a")
