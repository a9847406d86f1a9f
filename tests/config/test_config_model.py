"""What holds for every config model, and paths in one."""

import pytest
from config_models import BASE, Clip, errors
from pydantic import ValidationError

from jaxrl_vr.config import Config, ConfigError, LocalPath, parse


def test_a_config_is_frozen_and_refuses_unknown_keys():
    with pytest.raises(ValidationError, match="frozen"):
        Clip().low = 1.0  # pyright: ignore
    with pytest.raises(ValidationError, match="Extra inputs"):
        Clip(high=1.0)  # pyright: ignore


NUMBERS = ["inf", "-inf", "nan", "1e999", "9" * 400]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: n[:5])
def test_no_number_of_any_config_is_infinite_or_nan(files, number):
    # the rule is Config's own, so it holds wherever a number stands: field, union, mapping, None
    default = {
        "stages.sft.optimizer.learning_rate": "",
        "stages.rl.v2.objective.low": "; leave it out for the default, 0.2",
        "shares.b": "",
        "backup.learning_rate": "",
    }
    for key, fix in default.items():
        (line,) = errors(files, f"{key}={number}")
        start, _, rest = line.partition(": must be a finite number")
        assert start.startswith(f"command line: {key} = ") and rest == fix
    (line,) = errors(files, base=BASE.replace("a = 0.5", f"a = {number}"))
    assert line.startswith("base.toml: shares.a = ") and line.endswith("must be a finite number")
    with pytest.raises(ValidationError, match="finite number"):
        Clip(low=float(number))


class Paths(Config):
    path: LocalPath
    other: LocalPath | None = None


def test_a_path_may_start_at_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert parse(Paths, {"path": "~/data", "other": "~"}) == Paths(path="/home/me/data", other="~")
    assert Paths(path="~/data").path == "/home/me/data"
    for same in ("a/~/b", "/a", "stage:x/right.jsonl", "org/name"):
        assert Paths(path=same).path == same
    with pytest.raises(ConfigError) as caught:
        parse(Paths, {"path": "~nobody-of-this-name/x", "other": "a\0b"})
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "path = \"~nobody-of-this-name/x\": there is no home folder of '~nobody-of-this-name'; "
        "write the whole path, or ./~nobody-of-this-name/x for a name that begins with ~",
        'other = "a\\u0000b": holds a NUL character, which no path may; take it out',
    ]
