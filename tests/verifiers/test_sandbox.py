"""A sandbox and the process that holds it, which may be killed at any time."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from isolated import eventually

from jaxrl_vr.verifiers.sandbox import Level, Limits, Sandbox, SandboxFailed, content, memory_file
from jaxrl_vr.verifiers.sandbox_inside import remove
from jaxrl_vr.verifiers.sandbox_level import sandbox_level
from jaxrl_vr.verifiers.sandbox_user import NoUser, claimed_user

HOLDER = """
import json, select, sys, time
from jaxrl_vr.verifiers.sandbox import Level, Limits, Sandbox, memory_file
level, program = json.loads(sys.argv[1])
sandbox = Sandbox(Level(**level))
if program:
    files = [memory_file(text) for text in (program.encode(), b"", b"", b"")]
    sandbox.begin("script", Limits(), files)
    if program == "pass":
        select.select([sandbox.control], [], [])  # there is an answer, which nobody reads
print(sandbox._process.pid, sandbox._folder, flush=True)
time.sleep(600)
"""
SLEEPS = "import os; os.execvp('sleep', ['sleep', '70{pid}'])"


def level_of(name: str) -> Level:
    try:
        return sandbox_level(() if name == "unsafe" else (name,), unsafe=name == "unsafe")
    except SandboxFailed as error:
        pytest.skip(f"{name} does not hold on this machine: {error}")


def is_running(words: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if words in path.read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                return True
    return False


@pytest.mark.parametrize("name", ["bubblewrap", "landlock", "unsafe"])
@pytest.mark.parametrize(
    "program", ["", "pass", SLEEPS.format(pid=os.getpid())], ids=["idle", "unread", "running"]
)
def test_nothing_is_left_when_the_holder_is_killed(name, program):
    held = [sys.executable, "-c", HOLDER, json.dumps([vars(level_of(name)), program])]
    holder = subprocess.Popen(held, stdout=subprocess.PIPE, text=True)
    try:
        pid, folder = holder.stdout.readline().rstrip("\n").split(" ")
        assert bool(folder) == (name != "bubblewrap")
        assert not folder or Path(folder).is_dir()
        if "sleep" in program:
            assert eventually(lambda: is_running(f"sleep 70{os.getpid()}"))
    finally:
        holder.kill()
        holder.communicate()
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert not folder or not Path(folder).exists()
    assert not is_running(f"sleep 70{os.getpid()}")


def test_a_supervisor_that_is_killed_leaves_its_folder_to_the_host():
    sandbox = Sandbox(level_of("unsafe"))
    folder = Path(sandbox._folder)
    assert folder.is_dir()
    os.kill(sandbox._process.pid, signal.SIGKILL)
    sandbox.close()
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up being root")
def test_a_folder_that_its_owner_has_closed_is_removed(tmp_path):
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:3]:
        folder.chmod(0o755)
    code = (
        "import os, sys\nfrom jaxrl_vr.verifiers.sandbox_inside import remove\n"
        "os.setresgid(54321, 54321, 54321); os.setresuid(54321, 54321, 54321)\n"
        "top = sys.argv[1]; os.makedirs(top + '/a/b'); open(top + '/a/b/c', 'w').close()\n"
        "os.chmod(top + '/a/b', 0); os.chmod(top + '/a', 0); remove(top)"
    )
    top = tmp_path / "top"
    subprocess.run([sys.executable, "-c", code, str(top)], check=True)
    assert not top.exists()


def test_removing_what_is_not_there_is_no_error(tmp_path):
    remove(str(tmp_path / "none"))
    (tmp_path / "file").touch()
    remove(str(tmp_path))
    assert not tmp_path.exists()


def test_a_user_id_is_given_once_until_its_last_holder_ends():
    first, second = 4_000_000_000 + os.getpid() % 1000 * 2, 4_000_000_001 + os.getpid() % 1000 * 2
    user, claim = claimed_user([first, second])
    other, other_claim = claimed_user([first, second])
    assert {user, other} == {first, second}
    with pytest.raises(NoUser, match=f"from {first} to {second} are taken"):
        claimed_user([first, second])
    holder = subprocess.Popen(["sleep", "600"], pass_fds=[claim.fileno()])
    claim.close()
    with pytest.raises(NoUser):
        claimed_user([user])
    holder.kill()
    holder.wait()
    again, claim = claimed_user([user])
    assert again == user
    claim.close()
    other_claim.close()


@pytest.mark.parametrize("name", ["bubblewrap", "landlock"])
def test_programs_of_sandboxes_at_one_time_have_different_users(name):
    level = level_of(name)
    if not level.own_user:
        pytest.skip("programs have our user id where we are not root")
    sandboxes = [Sandbox(level) for _ in range(3)]
    users = []
    for sandbox in sandboxes:
        files = [memory_file(t) for t in (b"import os; print(os.getuid())", b"", b"", b"")]
        sandbox.begin("script", Limits(), files)
        assert sandbox.end().status == 0
        users.append(int(content(files[2], 100)))
        for file in files:
            os.close(file)
    # The claims are held by the sandboxes, and not by this process.
    assert all(61_000 <= user < 65_000 for user in users) and len(set(users)) == 3
    for user in users:
        with pytest.raises(NoUser):
            claimed_user([user])
    for sandbox in sandboxes:
        sandbox.close()
    for user in users:
        claimed_user([user])[1].close()
