"""Tables that get another type: what they lack then, and what they had before."""

from config_models import BASE, errors

NEEDS = "another type drops all keys but the name, so these are missing and to be set:"


def test_what_a_table_of_another_type_lacks(files):
    assert errors(files, "stages.end.type=train") == [
        f'command line: stages.end.type = "train": {NEEDS} stages.end.optimizer (a table)'
    ]


def test_what_it_had_and_what_is_not_its_own(files):
    base = BASE.replace(
        'type = "score"', 'type = "score"\ntasks = ["a"]\noptimizer = { warmup = 3 }'
    )
    assert errors(files, "stages.end.type=train", "seed=x", base=base) == [
        'command line: seed = "x": must be an integer',
        f'command line: stages.end.type = "train": {NEEDS} stages.end.optimizer (was '
        '{ warmup = 3 }); tasks does not belong to type "train"',
    ]
    # What is set behind the type is not lacking, and what may be left out is said.
    base = base.replace("tasks", "steps = 4\nupdates = 2\ntasks")
    assert errors(files, "stages.end.type=train", "stages.end.steps=3", base=base) == [
        f'command line: stages.end.type = "train": {NEEDS} stages.end.optimizer (was '
        '{ warmup = 3 }); dropped too: updates; tasks does not belong to type "train"'
    ]


def test_a_file_that_gives_another_type(files):
    more = "[[stages]]\nname = 'end'\ntype = 'train'\nsteps = 3"
    assert errors(files, base=BASE + "tasks = ['a']", more=more) == [
        f'more.toml: stages.end.type = "train": {NEEDS} stages.end.optimizer (a table); tasks does '
        'not belong to type "train"'
    ]


def test_a_type_that_was_there_before_another(files):
    base = BASE.replace('type = "score"', 'type = "train"\noptimizer = { learning_rate = 1.0 }')
    more = "[[stages]]\nname = 'end'\ntype = 'score'\ntasks = ['a']"
    assert errors(files, "stages.end.type=train", base=base, more=more) == [
        f'command line: stages.end.type = "train": {NEEDS} stages.end.optimizer (a table); tasks '
        'does not belong to type "train"'
    ]
