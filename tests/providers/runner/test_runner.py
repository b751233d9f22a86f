import functools
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from providers import runner as runner_module
from providers.runner import (
    Attempt,
    AttemptState,
    Launch,
    Runner,
    RunnerError,
    attempts_in,
    checked,
    counted,
    script,
)
from providers.transport import ConnectionLost, Finished, LocalTransport

REPOSITORY = Path(__file__).resolve().parents[3]
RUNNER_SH = REPOSITORY / "providers" / "runner" / "runner.sh"
SHELLS = [shell for shell in ("bash", "dash") if shutil.which(shell)]


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition; the deadline is only there to end a test that has failed."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for did not come"
        time.sleep(0.02)


class Host:
    """A folder of attempts on this machine, and what can be seen of it from outside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.runner = Runner(LocalTransport(), str(self.root))
        self.environment = {**os.environ, "FLEETFORM_RUNNER_DIR": str(self.root)}

    def start(self, text: str, attempt_id: str = "a", **options) -> Attempt:
        return self.runner.start(Launch(attempt_id=attempt_id, script=text, **options))

    def poll(self, attempt_id: str = "a") -> Attempt:
        return self.runner.poll([attempt_id])[attempt_id]

    def ended(self, attempt_id: str = "a") -> Attempt:
        until(lambda: self.poll(attempt_id).state is not AttemptState.RUNNING)
        return self.poll(attempt_id)

    def log(self, attempt_id: str = "a") -> str:
        return self.runner.tail(attempt_id, 0).decode()

    def logged(self, text: str, attempt_id: str = "a") -> None:
        until(lambda: text in self.log(attempt_id))

    def call(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = ["sh", str(RUNNER_SH), *arguments]
        return subprocess.run(command, input=stdin, env=self.environment, capture_output=True, check=False)

    def starter(self, text: str, attempt_id: str, size: int | None = None) -> subprocess.Popen[bytes]:
        """A caller of `start` that can be killed; its payload is sent, its stdin still open."""
        process = subprocess.Popen(
            ["sh", str(RUNNER_SH), "start", attempt_id, str(len(text) if size is None else size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=self.environment,
            start_new_session=True,
        )
        assert process.stdin
        process.stdin.write(text.encode())
        process.stdin.flush()
        return process

    def processes(self, variable: str) -> list[int]:
        """Those that still run and have this folder in a variable of their environment."""
        wanted = f"{variable}={self.root}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(entry == wanted or entry.startswith(wanted + b"/") for entry in environment):
                found.append(int(process.name))
        return found

    def tasks(self) -> list[int]:
        return self.processes("FLEETFORM_RUN")

    def supervisor(self, attempt_id: str = "a") -> int:
        return int((self.root / attempt_id / "started").read_text().split(" ")[4])


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    while pids := [*host.tasks(), *host.processes("FLEETFORM_RUNNER_DIR")]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()


# -------------------------------------------------------------------------------------------- starting


def test_exit_code_and_log_are_kept(host):
    begun = time.time()
    host.start("echo out; echo err >&2; echo out again; exit 7")
    attempt = host.ended()
    assert (attempt.state, attempt.exit_code, attempt.reason) == (AttemptState.EXITED, 7, None)
    assert host.log() == "out\nerr\nout again\n"
    assert attempt.log_bytes == len(host.log())
    assert attempt.started_at is not None
    assert attempt.ended_at is not None
    assert begun - 1 < attempt.started_at <= attempt.ended_at < time.time() + 1
    assert host.poll() == attempt


def test_start_returns_at_once_and_says_running(host):
    attempt = host.start("exec sleep 1000")
    assert (attempt.state, attempt.exit_code, attempt.ended_at) == (AttemptState.RUNNING, None, None)


def test_second_start_launches_nothing(host):
    text = f"echo x >> {host.folder}/ran; exec sleep 1000"
    host.start(text)
    until((host.folder / "ran").exists)
    assert host.start(text).state is AttemptState.RUNNING
    host.runner.stop("a", 1)
    assert host.start(text).state is AttemptState.EXITED
    assert (host.folder / "ran").read_text() == "x\n"


def test_of_eight_starts_at_once_one_launches(host):
    text = f"echo x >> {host.folder}/ran; exec sleep 1000"
    with ThreadPoolExecutor(8) as pool:
        attempts = list(pool.map(lambda _: host.start(text), range(8)))
    assert {attempt.state for attempt in attempts} == {AttemptState.RUNNING}
    until((host.folder / "ran").exists)
    host.runner.stop("a", 1)
    assert (host.folder / "ran").read_text() == "x\n"
    assert not list((host.root / "a").glob("payload.*"))


@pytest.mark.parametrize("milliseconds", [0, 2, 4, 6, 8, 10, 12, 15, 20, 30])
def test_starter_killed_at_any_instant_then_asked_again(host, milliseconds):
    text = f"echo x >> {host.folder}/ran; exit 3"
    process = host.starter(text, "a")
    time.sleep(milliseconds / 1000)  # the instant is what is varied: nothing is waited for
    end(process)
    host.start(text)
    assert host.ended().exit_code == 3
    assert (host.folder / "ran").read_text() == "x\n"
    assert not list((host.root / "a").glob("payload.*"))


def test_supervisor_killed_at_any_instant_launches_at_most_once(host):
    """Then the attempt may be lost, but a second start never launches it again."""
    for number in range(8):
        attempt_id, ran = f"k{number}", host.folder / f"ran{number}"
        text = f"echo x >> {ran}; exit 3"
        process = host.starter(text, attempt_id)
        until((host.root / attempt_id / "started").exists)
        time.sleep(number / 500)
        with suppress(ProcessLookupError):  # it may have done its work by now
            os.kill(host.supervisor(attempt_id), signal.SIGKILL)
        end(process)
        host.start(text, attempt_id)
        host.ended(attempt_id)
        until(lambda: not host.tasks())
        assert host.poll(attempt_id).state in {AttemptState.LOST, AttemptState.EXITED}
        assert not ran.exists() or ran.read_text() == "x\n"


def test_truncated_payload_runs_nothing(host):
    text = f"touch {host.folder}/ran\n"
    answer = host.call("start", "a", "999", stdin=text.encode())
    assert answer.returncode == 74
    assert answer.stdout.startswith(b"FLEETFORM-ERR truncated ")
    end(host.starter(text, "a", size=999))
    assert host.poll().state is AttemptState.CLAIMED
    host.start("exit 4")
    assert host.ended().exit_code == 4
    assert not (host.folder / "ran").exists()


def test_starter_that_hangs_blocks_nobody(host):
    process = host.starter("touch never", "a", size=999)
    until(lambda: list((host.root / "a").glob("payload.*")))
    host.start("exit 4")
    assert host.ended().exit_code == 4
    end(process)


def test_run_survives_the_death_of_who_started_it(host):
    code = f"""
import os, signal
from providers.runner import Launch, Runner
from providers.transport import LocalTransport
Runner(LocalTransport(), {str(host.root)!r}).start(
    Launch(attempt_id="a", script="echo begun; until [ -e {host.folder}/go ]; do sleep 0.05; done; exit 5"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    died = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, start_new_session=True, check=False)
    assert died.returncode == -signal.SIGKILL
    host.logged("begun")
    assert host.poll().state is AttemptState.RUNNING
    (host.folder / "go").touch()
    assert host.ended().exit_code == 5


def test_task_gets_what_the_caller_had(host):
    """Nothing of the runner's own surroundings reaches the task: no signals, files, locale, umask."""
    host.start(
        "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/$$/fd; readlink /proc/$$/fd/0; umask; pwd;"
        " env | grep -E '^(LC_ALL|FLEETFORM)' | grep -vE 'TMPFILES|QUICK' | cut -d= -f1"  # these tests' own
    )
    host.ended()
    lines = host.log().splitlines()
    assert lines[0].split()[1] == "0" * 16
    assert int(lines[1].split()[1], 16) & (1 << signal.SIGINT - 1 | 1 << signal.SIGTERM - 1) == 0
    umask = os.umask(0o77)
    os.umask(umask)
    assert lines[-4:] == ["/dev/null", f"{umask:04o}", str(Path.home()), "FLEETFORM_RUN"]
    assert set(lines[2:-4]) <= {"0", "1", "2", "255"}  # 255: bash has the script open


def test_secrets_are_in_no_file(host):
    secret = "s3cr3t-of-the-user"
    host.start(script(["echo begun", 'test "$TOKEN" && exec sleep 1000'], {"TOKEN": secret}, "/"))
    host.logged("begun")
    files = [path for path in host.root.rglob("*") if path.is_file()]
    assert {"log", "started"} <= {path.name for path in files}
    assert not any(secret.encode() in path.read_bytes() for path in files)
    assert all(path.stat().st_mode & 0o077 == 0 for path in [host.root, *files])
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in host.tasks()]
    assert not any(secret.encode() in command for command in commands)


def test_affinity_is_seen_by_the_task(host):
    if not shutil.which("taskset"):
        pytest.skip("no taskset here")
    cpu = min(os.sched_getaffinity(0))
    host.start("nproc", cpus=(cpu,))
    host.ended()
    assert host.log() == "1\n"


def test_impossible_cpus_are_no_obstacle(host):
    host.start("exit 3", cpus=(100_000,))
    assert host.ended().exit_code == 3
    assert (host.poll().confined, host.poll().means) == ("none", None)


# ------------------------------------------------------------------------------------------ confinement

MEMORY = 64 * 1024 * 1024


@functools.cache
def can_confine() -> bool:
    """Whether this machine lets us make control groups: by trying, with the tool's own means."""
    code = f". {shlex.quote(str(RUNNER_SH.with_name('confine.sh')))}; able"
    return subprocess.run(["sh", "-c", code], capture_output=True, check=False).returncode == 0


@pytest.fixture
def confines():
    if not can_confine():
        pytest.skip("this user can make no control groups here")


def groups() -> set[str]:
    """The control groups of attempts that there are now."""
    found = subprocess.run(
        ["find", "/sys/fs/cgroup", "-type", "d", "-name", "fleetform*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return set(found.stdout.splitlines())


def groups_of(host: Host, attempt_id: str = "a") -> list[Path]:
    return [Path(p) for p in (host.root / attempt_id / "confined").read_text().split()[1:]]


def test_two_tasks_keep_to_their_own_cpus(host, confines):
    """Not even those who try get out; and nothing is left of their groups."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        pytest.skip("this machine has one CPU")
    text = "taskset -c -p 0-1023 $$ >/dev/null 2>&1; sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status"
    for number, cpu in enumerate(usable[:2]):
        host.start(text, f"a{number}", cpus=(cpu,), hard=True)
    for number, cpu in enumerate(usable[:2]):
        ended = host.ended(f"a{number}")
        assert (ended.exit_code, ended.confined) == (0, "hard")
        assert host.log(f"a{number}") == f"{cpu}\n"
    made = [*groups_of(host, "a0"), *groups_of(host, "a1")]
    until(lambda: not any(path.exists() for path in made))


def test_memory_has_a_limit(host, confines):
    """A rank that wants more is killed, and this is reported as the reason; one within the limit is not."""
    cpu = min(os.sched_getaffinity(0))
    eats = f"exec {sys.executable} -c 'b\"x\" * (4 * {MEMORY})'"
    host.start(eats, "eats", cpus=(cpu,), memory_bytes=MEMORY)
    host.start("exit 137", "not", cpus=(cpu,), memory_bytes=MEMORY)
    ended = host.ended("eats")
    assert (ended.exit_code, ended.reason, ended.memory_bytes) == (137, "memory", MEMORY)
    assert (host.ended("not").exit_code, host.poll("not").reason) == (137, None)


@pytest.mark.slow
def test_what_hides_from_its_environment_is_killed_all_the_same(host, confines):
    """A new session, no variables, and a parent that is gone: its group still tells whose it is."""
    cpu = min(os.sched_getaffinity(0))
    text = f"env -i setsid -f sh -c 'echo $$ >{host.folder}/pid; exec sleep 1000'; sleep 1000"
    host.start(text, cpus=(cpu,))
    until(lambda: (host.folder / "pid").exists() and (host.folder / "pid").read_text())
    pid = int((host.folder / "pid").read_text())
    until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\0001000\0")
    assert host.runner.stop("a", 0).state is AttemptState.EXITED
    until(lambda: not Path(f"/proc/{pid}").exists())
    until(lambda: not any(path.exists() for path in groups_of(host)))


def test_without_its_supervisor_a_group_is_found_and_given_back(host, confines):
    """An orphan is one as long as somebody is in its group; `stop` ends it, `forget` lets the group go."""
    cpu = min(os.sched_getaffinity(0))
    host.start("echo up; exec sleep 1000", cpus=(cpu,))
    host.logged("up")
    os.kill(host.supervisor(), signal.SIGKILL)
    until(lambda: host.poll().state is AttemptState.ORPHAN)
    assert host.poll().confined == "hard"
    made = groups_of(host)
    assert made
    assert all(path.exists() for path in made)
    assert host.runner.stop("a", 0).state is AttemptState.LOST
    host.runner.forget("a")
    assert not any(path.exists() for path in made)


def test_a_group_that_a_crash_left_behind_is_no_obstacle(host, confines):
    """Its maker died before there was a task: the next start takes it over."""
    cpu = min(os.sched_getaffinity(0))
    host.start("exit 0", cpus=(cpu,))
    host.ended()
    left = groups_of(host)
    until(lambda: not any(path.exists() for path in left))
    for path in left:
        path.mkdir()
    for file in (host.root / "a").iterdir():
        file.unlink()  # as it was before it had begun
    host.start("exit 5", cpus=(cpu,), hard=True)
    assert (host.ended().exit_code, host.ended().confined) == (5, "hard")
    until(lambda: not any(path.exists() for path in left))


@pytest.fixture
def no_groups(host, monkeypatch):
    """A machine without control groups."""
    tools = host.folder / "tools"
    tools.mkdir()
    real = shutil.which("mkdir")
    text = f'#!/bin/sh\ncase "$*" in */cgroup/*) exit 1 ;; esac\nexec {real} "$@"\n'
    (tools / "mkdir").write_text(text)
    (tools / "mkdir").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    host.environment["PATH"] = os.environ["PATH"]


def test_without_groups_affinity_has_to_do(host, no_groups):
    cpu = min(os.sched_getaffinity(0))
    host.start("nproc", cpus=(cpu,), memory_bytes=MEMORY)
    ended = host.ended()
    assert (ended.exit_code, ended.confined, ended.means) == (0, "soft", "affinity")
    assert host.log() == "1\n"


def test_without_groups_hard_limits_are_refused(host, no_groups):
    """Nothing ran; asked for without them, it can still be started."""
    cpu = min(os.sched_getaffinity(0))
    with pytest.raises(RunnerError) as caught:
        host.start(f"touch {host.folder}/ran", cpus=(cpu,), hard=True)
    assert caught.value.code == "isolation"
    assert host.poll().state is AttemptState.CLAIMED
    assert not (host.folder / "ran").exists()
    host.start("exit 3", cpus=(cpu,))
    assert host.ended().exit_code == 3


def test_limits_that_cannot_all_be_had_are_not_hard(host, confines):
    """CPUs that there are not, and memory that there is: what can be had is."""
    before = groups()
    with pytest.raises(RunnerError) as caught:
        host.start("exit 3", "b", cpus=(100_000,), memory_bytes=MEMORY, hard=True)
    assert caught.value.code == "isolation"
    host.start("exit 3", cpus=(100_000,), memory_bytes=MEMORY)
    assert host.ended().exit_code == 3
    assert host.poll().confined in {"soft", "none"}
    made = groups_of(host)
    until(lambda: not any(path.exists() for path in made))
    assert not {path for path in groups() - before if ".b." in path}


def test_version_two_of_control_groups(tmp_path):
    """The one that most machines have: as it is laid out there, for this machine may have the other one."""
    tree = tmp_path / "tree"
    tools = tmp_path / "tools"
    (tree / "own").mkdir(parents=True)
    tools.mkdir()
    real = shutil.which("mkdir")
    files = "cpuset.cpus memory.max memory.swap.max cgroup.procs memory.events"
    (tools / "mkdir").write_text(
        f'#!/bin/sh\n{real} "$@" || exit\nfor last; do :; done\n'
        # In our own group there are processes: it cannot have groups below it that have controllers.
        f'case $last in {tree}/own/*) ;; *) for f in {files}; do : >"$last/$f"; done ;; esac\n'
    )
    (tools / "mkdir").chmod(0o755)
    code = f"""
. {RUNNER_SH.with_name("confine.sh")}
mounted() {{ [ "$1" = cgroup2 ] && top={tree} at={tree}/own; }}
group name 2,3 1024 && echo "$means $whole $groups"
echo 'oom_kill 0' >$groups/memory.events
killed $groups || echo alive
echo 'oom_kill 2' >$groups/memory.events
killed $groups && echo killed
cat $groups/cpuset.cpus $groups/memory.max $groups/memory.swap.max
printf '0\n7\n' >$groups/cgroup.procs
inside $groups
"""
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    for shell in SHELLS:
        done = subprocess.run(
            [shell, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == [
            f"cgroup-v2 1 {tree}/name",
            *("alive", "killed", "2,3", "1024", "0", "7"),
        ]
        assert not (tree / "own" / "name").exists()
        shutil.rmtree(tree / "name")


def test_version_two_without_the_controller_of_cpus(tmp_path):
    """As users of many machines have it: memory is held, which is not all that was asked for."""
    tree, tools = tmp_path / "tree", tmp_path / "tools"
    tree.mkdir()
    tools.mkdir()
    real = shutil.which("mkdir")
    (tools / "mkdir").write_text(
        f'#!/bin/sh\n{real} "$@" || exit\nfor last; do :; done\n'
        ': >"$last/memory.max"; : >"$last/cgroup.procs"\n'
    )
    (tools / "mkdir").chmod(0o755)
    # A kernel removes files with their group; the folder need not be empty of them.
    (tools / "rmdir").write_text('#!/bin/sh\nexec rm -rf "$@"\n')
    (tools / "rmdir").chmod(0o755)
    code = f"""
. {RUNNER_SH.with_name("confine.sh")}
mounted() {{ [ "$1" = cgroup2 ] && top={tree} at={tree}; }}
group name 2,3 1024 && echo "$means [$whole] $groups $(cat $groups/memory.max)"
group other 2,3 '' || echo none
"""
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    for shell in SHELLS:
        done = subprocess.run(
            [shell, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == [f"cgroup-v2 [] {tree}/name 1024", "none"]
        shutil.rmtree(tree / "name")


def test_who_gets_a_scope_of_systemd(tmp_path):
    """Root, and users whose instance of systemd stays; where that has controllers to give."""
    (tmp_path / "systemd-run").write_text("")
    (tmp_path / "systemd-run").chmod(0o755)
    code = f"""
. {RUNNER_SH.with_name("confine.sh")}
PATH={tmp_path}:$PATH tree={tmp_path} at=/
unset XDG_RUNTIME_DIR
booted() {{ [ "$boots" ]; }}
lingers() {{ [ "$stays" ]; }}
mounted() {{ [ "$1" = cgroup2 ] && top=$tree; }}
id() {{ echo "$who"; }}
told() {{ set -- $(apart x) && echo "$#: ${{1-}} ${{2-}} ${{3-}}"; }}
who=0 boots='' stays=''
: >$tree/cgroup.controllers
boots=1 && told
echo cpuset memory >$tree/cgroup.controllers
boots='' && told
boots=1 && told
who=7 && told
stays=1 && told
stays='' at=/user.slice/user-7.slice/user@7.service/app.slice && told
at=/user.slice/user-7.slice/session-2.scope && told
"""
    root, none = "7: systemd-run --scope --quiet", "0:"
    user = "10: env XDG_RUNTIME_DIR=/run/user/7 systemd-run"
    for shell in SHELLS:
        done = subprocess.run([shell, "-c", code], capture_output=True, text=True, check=True)
        said = [line.rstrip() for line in done.stdout.splitlines()]
        assert said == [none, none, root, none, user, user, none]


def test_a_scope_of_systemd_holds_the_groups(tmp_path):
    """The supervisor makes room in it first: no group has both processes and groups with limits."""
    scope, tools = tmp_path / "fleetform.a.7.scope", tmp_path / "tools"
    tools.mkdir()
    real = shutil.which("mkdir")
    (tools / "mkdir").write_text(
        f'#!/bin/sh\n{real} "$@" || exit\nfor last; do :; done\n: >"$last/cgroup.procs"\n'
        'case $last in */own | */own/*) ;; *) : >"$last/cpuset.cpus"; : >"$last/memory.max" ;; esac\n'
    )
    (tools / "mkdir").chmod(0o755)
    code = f"""
. {RUNNER_SH.with_name("confine.sh")}
where={scope}
booted() {{ :; }}
mounted() {{ [ "$1" = cgroup2 ] && top={tmp_path} at=$where; }}
settle && [ "$(cat {scope}/own/cgroup.procs)" = $$ ] && where=$where/own
group name 2,3 1024 && echo "$means $whole $groups $(cat $groups/cpuset.cpus)"
"""
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    for shell in SHELLS:
        scope.mkdir()
        done = subprocess.run(
            [shell, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout == f"systemd-run 1 {scope}/name 2,3\n"
        shutil.rmtree(scope)


@pytest.mark.parametrize("answer", ['exec "$@"', "exit 1", "exit 0"])
def test_a_rank_starts_once_whatever_systemd_says(host, answer):
    """It may also refuse."""
    for part in RUNNER_SH.parent.glob("*.sh"):
        shutil.copy(part, host.folder)
    (host.folder / "asked").write_text(f"#!/bin/sh\necho $1 >>{host.folder}/names\nshift\n{answer}\n")
    (host.folder / "asked").chmod(0o755)
    with (host.folder / "confine.sh").open("a") as file:
        file.write(f'apart() {{ echo "{host.folder}/asked $1"; }}\n')
    text = f"echo x >>{host.folder}/ran; exit 3"
    command = ["sh", str(host.folder / "runner.sh"), "start", "a", str(len(text))]
    done = subprocess.run(
        command, input=text, env=host.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert host.ended().exit_code == 3
    assert (host.folder / "ran").read_text() == "x\n"
    assert (host.folder / "names").read_text().startswith("fleetform.a.")


def test_an_attempt_of_an_older_runner_can_be_polled(host):
    """It knows nothing of how it is confined."""
    line = b"FLEETFORM-HOST 1 boot 1 2\na exited 7 0 - 3 1 2 -\nFLEETFORM-END\n"

    class Older(LocalTransport):
        def run(self, argv, stdin=b"", timeout=None) -> Finished:
            return Finished(0, line, b"")

    runner = Runner(Older(), str(host.root))
    assert runner.poll(["a"])["a"].confined is None


# ---------------------------------------------------------------------------------------------- mounts


def can_mount() -> bool:
    for rights in [], ["--user", "--map-current-user", "--keep-caps"]:
        command = ["unshare", *rights, "--mount", "mount", "--bind", "/tmp", "/tmp"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return True
    return False


needs_mount = pytest.mark.skipif(
    not shutil.which("unshare") or not can_mount(), reason="this machine does not let us mount"
)


@needs_mount
def test_mount_is_seen_by_the_task_only(host):
    source, target = host.folder / "the source", host.folder / "50%, of" / "target"
    source.mkdir()
    (source / "hello").write_text("from the source")
    text = (
        f"cat {shlex.quote(str(target))}/hello; echo made > {shlex.quote(str(target))}/made; exec sleep 1000"
    )
    host.start(text, mounts=((str(source), str(target)),))
    host.logged("from the source")
    assert host.poll().mounted == (str(target),)
    until((source / "made").exists)
    assert not list(target.iterdir())


@needs_mount
def test_impossible_mounts_are_left_out(host):
    source, good = host.folder / "source", host.folder / "good"
    source.mkdir()
    (host.folder / "link").symlink_to("/proc")
    bad = [
        "/",
        "/proc/x",
        "/sys",
        "/dev/shm",
        f"{host.folder}/link/x",
        "relative",
        f"{host.folder}/x/{'../' * len(host.folder.parts)}proc",
    ]
    bad += [str(host.root), str(host.folder), f"{RUNNER_SH}/x"]
    mounts = [(str(source), target) for target in bad]
    mounts += [(str(source / "nosuch"), str(host.folder / "y")), (str(source), str(good))]
    host.start("exit 3", mounts=tuple(mounts))
    attempt = host.ended()
    assert (attempt.exit_code, attempt.mounted) == (3, (str(good),))
    assert host.log() == ""


def test_without_the_tools_a_task_starts_without_mounts(host, monkeypatch):
    tools = host.folder / "tools"
    tools.mkdir()
    (tools / "unshare").write_text("#!/bin/sh\nexit 1\n")
    (tools / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    host.start("exit 3", mounts=((str(tools), str(host.folder / "target")),))
    assert host.ended().exit_code == 3
    assert host.poll().mounted == ()


def bound(attempt: Attempt) -> tuple[object, ...]:
    return (attempt.exit_code, attempt.reason, attempt.lacking, attempt.mounted)


@needs_mount
def test_folders_and_files_of_the_host_are_bound(host):
    """One that may be absent is left out; one below another, and one that is there already, are fine."""
    folder, file, seen = host.folder / "a folder", host.folder / "file", host.folder / "seen"
    folder.mkdir()
    (folder / "hello").write_text("from the folder\n")
    file.write_text("from the file\n")
    binds = [
        (str(file), str(seen / "below" / "file"), False),
        (str(folder), str(seen), False),
        (str(host.folder / "nosuch"), str(host.folder / "x"), True),
        ("/dev/null", "/dev/null", False),
    ]
    host.start(f"cat {seen}/hello {seen}/below/file; test ! -e {host.folder}/x", binds=tuple(binds))
    attempt = host.ended()
    assert host.log() == "from the folder\nfrom the file\n"
    assert bound(attempt) == (0, None, None, (str(seen), str(seen / "below" / "file")))


def test_without_a_folder_of_the_host_no_command_runs(host):
    """And the missing folder is reported, by the host and in the log."""
    lacking = f"{host.folder}/50%, no such"
    host.start("echo ran", binds=((lacking, "/seen", False),))
    assert bound(host.ended()) == (72, "absent", lacking, ())
    assert host.log() == f"fleetform: this host has no {lacking}, which is to be mounted at /seen\n"


def test_a_reason_that_a_full_disk_lost_is_none(host):
    """It failed, and was not stopped."""
    host.start(': >"$FLEETFORM_RUN/why"; exit 125')
    ended = host.ended()
    assert (ended.exit_code, ended.reason) == (125, None)
    assert ended.ended_at is not None


def test_a_folder_that_cannot_be_bound_is_not_replaced_by_another(host, monkeypatch):
    tools, other = host.folder / "tools", host.folder / "other"
    tools.mkdir()
    other.mkdir()
    (tools / "unshare").write_text("#!/bin/sh\nexit 1\n")
    (tools / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    host.start("echo ran", binds=((str(tools), str(other), False),))
    assert bound(host.ended()) == (72, "unmounted", str(tools), ())
    host.start("echo ran", "b", binds=((str(tools), str(other), True), (str(tools), str(tools), False)))
    assert bound(host.ended("b")) == (0, None, None, ())
    assert host.log("b") == "ran\n"


# -------------------------------------------------------------------------------------------- the log


def test_tail_by_offset(host):
    host.start("for i in 1 2 3 4 5; do echo line $i; done; printf '\\000\\377'")
    host.ended()
    got = b""
    while piece := host.runner.tail("a", len(got), 10):
        assert len(piece) <= 10
        got += piece
    assert got == b"".join(b"line %d\n" % i for i in range(1, 6)) + b"\0\xff"
    assert host.runner.tail("a", 10**10) == b""


def test_tail_of_unknown_attempt(host):
    with pytest.raises(RunnerError) as refused:
        host.runner.tail("a", 0)
    assert refused.value.code == "missing"


# ------------------------------------------------------------------------------------------- stopping


def test_stop_keeps_the_exit_code_given_on_term(host):
    host.start("trap 'echo bye; exit 3' TERM; echo begun; sleep 1000 & wait")
    host.logged("begun")
    attempt = host.runner.stop("a", 100_000)
    assert (attempt.state, attempt.exit_code, attempt.reason) == (AttemptState.EXITED, 3, "stopped")
    assert host.log().endswith("bye\n")
    assert not host.tasks()


def test_stop_waits_for_what_saves_on_term(host):
    """The user's shell does not handle the TERM, its child does, and nothing cuts that short."""
    program = "trap 'sleep 0.3; echo saved; exit 6' TERM; echo begun; sleep 1000 & wait"
    host.start(script([f"sh -c {shlex.quote(program)}", "echo never"], {}, "/"))
    host.logged("begun")
    attempt = host.runner.stop("a", 60)
    assert (attempt.exit_code, attempt.reason, host.log()) == (6, "stopped", "begun\nsaved\n")


def test_stop_kills_what_ignores_term(host):
    host.start("trap '' TERM; (trap '' TERM; sleep 1000) & echo begun; sleep 1000; sleep 1000")
    host.logged("begun")
    attempt = host.runner.stop("a", 1)
    assert (attempt.state, attempt.exit_code, attempt.reason) == (AttemptState.EXITED, 137, "stopped")
    assert not host.tasks()


def test_stop_kills_strays_in_sessions_of_their_own(host):
    host.start("setsid sh -c \"trap '' TERM; sleep 1000; sleep 1000\" & setsid sleep 1000 & echo begun; wait")
    host.logged("begun")
    until(lambda: len(host.tasks()) >= 4)
    attempt = host.runner.stop("a", 1)
    assert (attempt.state, attempt.exit_code) == (AttemptState.EXITED, 143)
    assert not host.tasks()


def test_stop_finds_what_lost_its_mark(host):
    host.start("set -m; env -i sleep 1000 & echo $!; exec env -i sleep 1000")
    until(lambda: host.log().endswith("\n"))
    until(lambda: not host.tasks())
    host.runner.stop("a", 1)
    until(lambda: not Path(f"/proc/{host.log().strip()}").exists())  # its remains may wait for init


def test_stop_twice_is_once(host):
    host.start("trap 'echo term' TERM; echo begun; while :; do sleep 1000 & wait; done")
    host.logged("begun")
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(host.runner.stop, "a", 1000)
        host.logged("term")
        attempts = [
            *pool.map(lambda _: host.runner.stop("a", 1), range(2)),
            first.result(),
            host.runner.stop("a", 1),
        ]
    assert len(set(attempts)) == 1
    assert (attempts[0].exit_code, attempts[0].reason) == (137, "stopped")
    assert host.log().count("term") == 1


def test_stop_goes_on_when_its_caller_dies(host):
    host.start("trap '' TERM; echo begun; sleep 1000")
    host.logged("begun")
    process = subprocess.Popen(
        ["sh", str(RUNNER_SH), "stop", "a", "1"],
        env=host.environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    until(lambda: (host.root / "a" / "ctl").read_text().startswith("stopped"))
    end(process)
    assert host.ended().exit_code == 137


def test_stop_right_after_start(host):
    for number in range(4):
        host.start("exec sleep 1000", f"a{number}")
        attempt = host.runner.stop(f"a{number}", 5)
        assert (attempt.state, attempt.exit_code, attempt.reason) == (AttemptState.EXITED, 143, "stopped")


def test_what_was_stopped_before_it_had_a_pid_runs_nothing(host):
    """The stop found no process to signal: the task looks for it once its own pid is written down."""
    host.environment |= {"FLEETFORM_UMASK": "022", "FLEETFORM_LC": ""}  # as its supervisor gives them on
    folder = host.root / "a"
    folder.mkdir(parents=True)
    (folder / "task").write_text("echo ran\n")
    for reason, code, out in (("stopped", 143, b""), ("-", 0, b"ran\n")):
        (folder / "ctl").write_text(f"{reason} 0 - 0\n")
        done = host.call("_task", "a")
        assert (done.returncode, done.stdout) == (code, out)


def test_stop_of_what_ended_or_never_was(host):
    host.start("exit 3")
    ended = host.ended()
    assert host.runner.stop("a", 1) == ended
    assert host.runner.stop("b", 1) == Attempt(attempt_id="b", state=AttemptState.MISSING)


@pytest.mark.slow
def test_what_a_task_leaves_behind_is_swept(host):
    host.start("setsid sleep 1000 & sleep 1000 & (trap '' TERM; exec sleep 1000) & exit 4")
    attempt = host.ended()
    assert (attempt.exit_code, attempt.reason) == (4, None)
    assert not host.tasks()


def test_orphan_can_be_stopped(host):
    host.start("echo begun; sleep 1000")
    host.logged("begun")
    os.kill(host.supervisor(), signal.SIGKILL)
    until(lambda: host.poll().state is AttemptState.ORPHAN)
    attempt = host.runner.stop("a", 5)
    assert (attempt.state, attempt.exit_code, attempt.reason) == (AttemptState.LOST, None, "stopped")
    assert not host.tasks()


def vanish(host: Host, how: str) -> None:
    """What a cleaner of old files does to an attempt's folder."""
    if how == "folder":
        shutil.rmtree(host.root / "a")
    else:
        (host.root / "a" / how).unlink()


@pytest.mark.parametrize("how", ["folder", "started", "pid", "ctl"])
def test_what_runs_is_not_lost_with_its_folder(host, how):
    """It is launched no second time, and its exit code is known at the end."""
    text = f"echo x >> {host.folder}/ran; until [ -e {host.folder}/go ]; do sleep 0.05; done; exit 5"
    host.start(text)
    until((host.folder / "ran").exists)
    vanish(host, how)
    assert host.poll().state in {AttemptState.RUNNING, AttemptState.ORPHAN}
    assert host.start(text).state in {AttemptState.RUNNING, AttemptState.ORPHAN}
    (host.folder / "go").touch()
    until(lambda: not host.tasks())
    until(lambda: host.poll().state is AttemptState.EXITED)
    assert host.poll().exit_code == 5
    assert (host.folder / "ran").read_text() == "x\n"


@pytest.mark.parametrize("how", ["folder", "started"])
def test_what_ended_without_its_folder_runs_until_that_is_recorded(host, how):
    """Else it would be lost in between, and might be launched a second time."""
    text = f"echo x >> {host.folder}/ran; until [ -e {host.folder}/go ]; do sleep 0.05; done; exit 5"
    host.start(text)
    until((host.folder / "ran").exists)
    supervisor = host.supervisor()
    vanish(host, how)
    os.kill(supervisor, signal.SIGSTOP)
    (host.folder / "go").touch()
    until(lambda: not host.tasks())
    assert host.poll().state is AttemptState.RUNNING
    assert host.start(text).state is AttemptState.RUNNING
    os.kill(supervisor, signal.SIGCONT)
    assert host.ended().exit_code == 5
    assert (host.folder / "ran").read_text() == "x\n"


@pytest.mark.parametrize("supervised", [True, False])
def test_what_runs_without_its_folder_can_be_stopped(host, supervised):
    """It cannot be launched after that, either."""
    host.start("echo begun; exec sleep 1000")
    host.logged("begun")
    if not supervised:
        os.kill(host.supervisor(), signal.SIGKILL)
    vanish(host, "folder")
    host.runner.stop("a", 5)
    assert not host.tasks()
    ended = AttemptState.EXITED if supervised else AttemptState.LOST
    until(lambda: host.poll().state is ended)
    assert host.start("true").state is ended


def test_a_cleaner_of_old_files_leaves_what_is_known_of_a_run(host):
    """systemd-tmpfiles skips files with the sticky bit."""
    host.start("exec sleep 1000")
    until((host.root / "a" / "pid").exists)
    kept = [path for path in (host.root / "a").iterdir() if path.stat().st_mode & stat.S_ISVTX]
    assert {"started", "pid", "ctl", "log", "run", "lock"} <= {path.name for path in kept}


# --------------------------------------------------------------------------------------------- limits


def test_limit_ends_the_run(host):
    # The limit counts from before the first command: on a loaded machine a second may pass until that.
    host.start("trap '' TERM; sleep 1000", limit_seconds=3, grace_seconds=0)
    attempt = host.ended()
    assert (attempt.state, attempt.exit_code, attempt.reason) == (AttemptState.EXITED, 137, "limit")
    assert attempt.started_at is not None
    assert attempt.ended_at is not None
    assert 1 <= attempt.ended_at - attempt.started_at < 10
    assert not host.tasks()


@pytest.mark.slow
def test_limit_of_an_orphan_holds(host):
    # Not before the task runs: a supervisor that dies earlier leaves nothing that a limit could end.
    host.start("echo begun; exec sleep 1000", limit_seconds=6)
    host.logged("begun")
    os.kill(host.supervisor(), signal.SIGKILL)
    attempt = host.ended()
    until(lambda: host.poll().state is AttemptState.LOST)
    assert attempt.exit_code is None
    assert host.poll().reason == "limit"


@pytest.mark.slow
def test_limit_of_a_running_attempt_can_be_changed(host):
    host.start("exec sleep 1000", "b", limit_seconds=4)  # not sooner: a busy machine takes its time
    host.runner.set_limit("b", None)
    host.start("exec sleep 1000", "c", limit_seconds=4)
    host.runner.set_limit("c", 1000)
    host.start("exec sleep 1000", "a")
    host.runner.set_limit("a", 1000)
    host.runner.set_limit("a", 1)
    attempt = host.ended("a")
    assert (attempt.exit_code, attempt.reason) == (143, "limit")
    started = attempt.started_at or 0
    until(lambda: time.time() > started + 5)  # by now the first limits of the others would have ended them
    assert {host.poll(i).state for i in "bc"} == {AttemptState.RUNNING}
    host.runner.set_limit("c", 1)
    assert host.ended("c").reason == "limit"
    host.runner.set_limit("c", 5)
    with pytest.raises(RunnerError, match="missing"):
        host.runner.set_limit("nosuch", 5)


# --------------------------------------------------------------------------------- states and refusals


def test_attempt_of_another_boot(host, monkeypatch):
    monkeypatch.setenv("FLEETFORM_BOOT_ID_FILE", str(host.folder / "boot"))
    (host.folder / "boot").write_text("first\n")
    host.start("exit 3", "ended")
    host.ended("ended")
    host.start("exec sleep 1000")
    (host.folder / "boot").write_text("second\n")
    assert host.poll().state is AttemptState.REBOOTED
    assert host.start("exec sleep 1000").state is AttemptState.REBOOTED
    assert host.runner.stop("a", 1).state is AttemptState.REBOOTED
    assert host.poll("ended").exit_code == 3


def test_pid_that_is_someone_elses_by_now_is_left_alone(host):
    host.start("echo begun; sleep 1000")
    host.logged("begun")
    os.kill(host.supervisor(), signal.SIGKILL)
    until(lambda: host.poll().state is AttemptState.ORPHAN)
    (host.root / "a" / "pid").write_text(f"{os.getpid()} 1\n")
    assert host.runner.stop("a", 0).state is AttemptState.LOST
    assert not host.tasks()


def test_poll_of_many(host):
    for number in range(3):
        host.start(f"printf %s {'x' * number}; exit {number}", f"e{number}")
        host.ended(f"e{number}")
    ids = [*(f"no{number}" for number in range(600)), "e0", "e1", "e2"]
    found = host.runner.poll(ids)
    assert list(found) == ids
    assert [found[f"e{n}"].log_bytes for n in range(3)] == [0, 1, 2]
    assert [found[f"e{n}"].exit_code for n in range(3)] == [0, 1, 2]
    assert found["no7"] == Attempt(attempt_id="no7", state=AttemptState.MISSING)
    (host.root / "lost+found").mkdir()
    assert set(host.runner.poll()) == {"e0", "e1", "e2"}
    assert host.runner.poll([]) == {}


def test_forget(host):
    host.start("exec sleep 1000")
    with pytest.raises(RunnerError) as refused:
        host.runner.forget("a")
    assert refused.value.code == "busy"
    host.runner.stop("a", 1)
    host.runner.forget("a")
    assert host.poll().state is AttemptState.MISSING
    assert not list(host.root.iterdir())
    host.runner.forget("a")


def test_unwritable_folder():
    unwritable = Runner(LocalTransport(), "/proc/fleetform")
    with pytest.raises(RunnerError) as refused:
        unwritable.start(Launch(attempt_id="a", script="exit 0"))
    assert refused.value.code == "unwritable"
    assert unwritable.poll(["a"])["a"].state is AttemptState.MISSING


def test_full_disk(host):
    if not shutil.which("unshare") or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    shell = f"""
mkdir {host.folder}/disk && mount -t tmpfs -o size=128k none {host.folder}/disk || exit 99
export FLEETFORM_RUNNER_DIR={host.folder}/disk/root
run='until [ -e {host.folder}/go ]; do sleep 0.05; done; exit 6'
printf %s "$run" | sh {RUNNER_SH} start a ${{#run}} >/dev/null
printf %s "$run" | sh {RUNNER_SH} start s ${{#run}} >/dev/null
dd if=/dev/zero of={host.folder}/disk/fill bs=4k 2>/dev/null
head -c 9999 /dev/zero | sh {RUNNER_SH} start b 9999
echo status $?
sh {RUNNER_SH} stop s 5 | grep '^s '
touch {host.folder}/go
until sh {RUNNER_SH} poll a | grep '^a exited'; do sleep 0.05; done
"""
    host.root = host.folder / "disk" / "root"
    command = ["unshare", "--mount", "sh", "-c", shell]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 99:
        pytest.skip("no mounts here")
    refusal, status, stopped, ended, *_ = done.stdout.splitlines()
    assert refusal.startswith("FLEETFORM-ERR nospace ")
    assert status == "status 70"
    assert stopped.split()[1:5:3] == ["exited", "stopped"]
    assert ended.split()[3] == "6"


@pytest.mark.parametrize("bad", ["", "../x", "a/b", ".a", "-a", "a b", "a\n", "é", "x" * 201])
def test_bad_id_is_refused(host, bad):
    for ask in (lambda: host.start("exit 0", bad), lambda: host.poll(bad), lambda: host.runner.forget(bad)):
        with pytest.raises(RunnerError) as refused:
            ask()
        assert refused.value.code == "usage"
    assert not host.root.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["start"],
        ["nosuch", "a"],
        ["start", "a", "x"],
        ["start", "a", "1", "--cpus"],
        ["start", "a", "1", "--cpus", "0;1"],
        ["start", "a", "1", "--limit", "0"],
        ["start", "a", "1", "--mount", "/a"],
        ["start", "a", "1", "--unknown", "x"],
        ["stop", "a"],
        ["stop", "a", "-1"],
        ["stop", "a", "010"],
        ["limit", "a", "1s"],
        ["tail", "a", ""],
    ],
)
def test_wrong_usage_is_refused(host, arguments):
    answer = host.call(*arguments)
    assert (answer.returncode, answer.stdout.split()[:2]) == (64, [b"FLEETFORM-ERR", b"usage"])
    assert answer.stderr == b""
    assert not host.root.exists()


def test_missing_tools_are_named(host):
    tools = host.folder / "tools"
    tools.mkdir()
    for tool in ("sh", "mkdir", "date", "stat", "rm", "cat"):
        (tools / tool).symlink_to(shutil.which(tool) or "")
    host.environment["PATH"] = str(tools)
    answer = host.call("start", "a", "6", stdin=b"exit 0")
    assert (answer.returncode, answer.stdout.split()[:2]) == (69, [b"FLEETFORM-ERR", b"tools"])


# ------------------------------------------------------------------------------------------ transports


class Noisy:
    """A host whose login writes more than was asked for."""

    def run(self, argv, stdin=b"", timeout=None):
        done = LocalTransport().run(argv, stdin, timeout)
        return Finished(done.exit_code, b"WELCOME x y\n> " + done.stdout + b"bye\n", done.stderr)


class Cut:
    """A host whose answer is cut off, though the command ended well."""

    def run(self, argv, stdin=b"", timeout=None):
        done = LocalTransport().run(argv, stdin, timeout)
        return Finished(done.exit_code, done.stdout[:-5], done.stderr)


def test_noise_around_an_answer_is_ignored(host):
    host.start("echo hello; exit 3")
    host.ended()
    noisy = Runner(Noisy(), str(host.root))
    assert noisy.poll(["a"])["a"].exit_code == 3
    assert noisy.tail("a", 0) == b"hello\n"
    with pytest.raises(RunnerError) as refused:
        noisy.tail("b", 0)
    assert (refused.value.code, refused.value.text) == ("missing", "b")


def test_cut_answer_is_a_lost_connection(host):
    host.start("echo hello")
    host.ended()
    cut = Runner(Cut(), str(host.root))
    for ask in (lambda: cut.poll(["a"]), lambda: cut.tail("a", 0)):
        with pytest.raises(ConnectionLost):
            ask()


def test_local_transport():
    local = LocalTransport()
    done = local.run(["sh", "-c", 'cat; echo "$1" >&2; exit 3', "sh", "$HOME 'x'"], b"in")
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"in", b"$HOME 'x'\n")
    session = local.run(["cut", "-d ", "-f6", "/proc/self/stat"])
    assert int(session.stdout) != os.getsid(0)  # else a Ctrl-C at the terminal would reach it
    with pytest.raises(ConnectionLost, match="no answer within"):
        local.run(["sh", "-c", "sleep 1000 & sleep 1000"], timeout=0.2)
    with pytest.raises(ConnectionLost, match="cannot run"):
        local.run(["/nosuch/program"])


def test_runner_that_is_not_there(host):
    lost = Runner(LocalTransport(), str(host.root), "/nosuch/runner.sh")
    with pytest.raises(RunnerError) as refused:
        lost.poll(["a"])
    assert refused.value.code == "failed"


# ------------------------------------------------------------------------------------------ the script


def run(shell: str, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([shell, "-s"], input=text, capture_output=True, text=True, check=False, cwd="/")


@pytest.mark.parametrize("shell", SHELLS)
class TestScript:
    def test_stops_at_the_first_command_that_fails(self, shell):
        done = run(shell, script(["echo one", "true; (exit 9)", "echo never"], {}, "/"))
        assert (done.returncode, done.stdout) == (9, "one\n")

    def test_all_commands_run(self, shell):
        done = run(shell, script(["false || true", "", "# nothing", "echo end"], {}, "/"))
        assert (done.returncode, done.stdout) == (0, "end\n")
        assert run(shell, script([], {}, "")).returncode == 0

    def test_folder_and_variables_persist(self, shell, tmp_path):
        (tmp_path / "sub").mkdir()
        done = run(shell, script(["cd sub", "x=1; export y=2", 'echo "$PWD $x $y"'], {}, str(tmp_path)))
        assert done.stdout == f"{tmp_path}/sub 1 2\n"

    def test_several_lines_and_here_documents(self, shell):
        command = "cat <<EOF\n$A and 'b'\nEOF\nif true\nthen\n  echo 'two\nlines'\nfi # comment"
        done = run(shell, script([command, "echo end"], {"A": "a"}, "/"))
        assert done.stdout == "a and 'b'\ntwo\nlines\nend\n"

    def test_broken_command_does_not_swallow_the_next(self, shell):
        for broken in ("echo 'x", "if true", "}", "echo $("):
            done = run(shell, script([broken, "echo never"], {}, "/"))
            assert done.returncode != 0
            assert done.stdout == ""
        assert run(shell, script(["cat <<EOF\nx\n", "echo end"], {}, "/")).stdout == "x\nend\n"

    def test_set_e_of_the_user_works(self, shell):
        done = run(shell, script(["set -e\nfalse\necho never", "echo never"], {}, "/"))
        assert (done.returncode, done.stdout) == (1, "")

    def test_hostile_values_stay_as_they_are(self, shell):
        values = [
            "a b",
            "it's",
            '"; exit 1; "',
            "$HOME `id` $(id)",
            "two\nlines\n",
            "\\n\\",
            "é\t*",
            "",
            "-n",
            "!x",
        ]
        env = {f"V{number}": value for number, value in enumerate(values)}
        done = run(shell, script([f'printf %s "$V{number}<"' for number in range(len(values))], env, "/"))
        assert done.stdout == "".join(value + "<" for value in values)
        assert run(shell, script(["env"], {"EXPORTED": "yes"}, "/")).stdout.count("EXPORTED=yes\n") == 1

    def test_hostile_folder(self, shell, tmp_path):
        folder = tmp_path / "-a 'b' $HOME\n"
        folder.mkdir()
        assert run(shell, script(["pwd"], {}, str(folder))).stdout == f"{folder}\n"
        assert run(shell, script(["pwd"], {"CDPATH": str(tmp_path)}, "usr")).stdout == "/usr\n"
        done = run(shell, script(["echo never"], {}, "/nosuch"))
        assert done.returncode != 0
        assert "/nosuch" in done.stderr
        assert done.stdout == ""


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A=B", "A B", "A\n", "é", "A;id"])
def test_names_of_variables_are_checked(name):
    with pytest.raises(ValueError, match="not a name"):
        script([], {name: "x"}, "/")


def test_nul_is_refused():
    with pytest.raises(ValueError, match="NUL"):
        script(["echo"], {"A": "a\0b"}, "/")


def test_bash_runs_the_commands_where_it_is(host):
    host.start(script(['echo "${BASH_VERSION:+bash}${BASH_VERSION-sh}"', "a=(1 2); echo ${#a[@]}"], {}, "/"))
    attempt = host.ended()
    if shutil.which("bash"):
        assert attempt.exit_code == 0
        assert host.log().startswith("bash")
    else:
        assert host.log().startswith("sh")


def test_ids_per_call_fit_every_command_line():
    assert runner_module.IDS_PER_CALL * 201 < 131072


# ------------------------------------------------------------------------------------- who may write


def writer(host, epoch: int) -> Runner:
    """The runner as it is asked by the writer with that number."""
    return Runner(LocalTransport(), str(host.root), fence=lambda: epoch)


def test_who_was_overtaken_starts_and_stops_nothing(host):
    """A look by a later writer is enough. Who only reads has no number, and is refused nothing."""
    first, second = writer(host, 9), writer(host, 10)
    first.start(Launch(attempt_id="a", script="sleep 1000"))
    first.poll(["a"])
    assert second.poll(["a"])["a"].state is AttemptState.RUNNING
    late = (
        lambda: first.start(Launch(attempt_id="b", script="true")),
        lambda: first.stop("a", 0),
        lambda: first.set_limit("a", 1),
        lambda: first.forget("a"),
        lambda: first.poll(["a"]),
    )
    for call in late:
        with pytest.raises(RunnerError) as refused:
            call()
        assert (refused.value.code, refused.value.text) == (
            "stale",
            "a later command was here (10, and this is 9)",
        )
    assert {name: a.state for name, a in host.runner.poll().items() if a.log_bytes or name == "a"} == {
        "a": AttemptState.RUNNING
    }
    assert host.poll("b").state in (AttemptState.MISSING, AttemptState.CLAIMED)
    assert second.stop("a", 0).state is AttemptState.EXITED


def test_who_is_overtaken_while_its_script_comes_starts_nothing(host):
    """The number is checked once more where the attempt begins, and no other writer comes in between."""
    text = f"touch {host.folder}/ran"
    host.environment["FLEETFORM_EPOCH"] = "9"
    process = host.starter(text, "a", size=len(text) + 1)
    until(lambda: any((host.root / "a").glob("payload.*")))
    assert writer(host, 10).poll(["a"])["a"].state is AttemptState.CLAIMED
    assert process.stdin
    process.stdin.write(b"\n")
    process.stdin.close()
    assert process.wait(15) == 76
    assert host.poll().state is AttemptState.CLAIMED
    assert list((host.root / "a").glob("payload.*")) == []
    assert writer(host, 10).start(Launch(attempt_id="a", script="true")).state is not AttemptState.CLAIMED


def test_a_task_is_not_told_who_wrote(host):
    writer(host, 9).start(Launch(attempt_id="a", script="env"))
    host.ended()
    assert "FLEETFORM_EPOCH" not in host.log()


def test_many_starts_of_one_writer_at_once(host):
    with ThreadPoolExecutor(8) as pool:
        mine = writer(host, 9)
        list(pool.map(lambda i: mine.start(Launch(attempt_id=f"a{i}", script="exit 7")), range(8)))
    for i in range(8):
        assert host.ended(f"a{i}").exit_code == 7


# ------------------------------------------------------------------------------------- GPUs that do nothing


GPUS = ("GPU-a", "GPU-b")


class Gpus:
    """An `nvidia-smi` that prints a text, and keeps count of how often it was asked. There is no GPU here."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said, self.asked = folder / "said", folder / "asked"
        command = folder / "bin" / "nvidia-smi"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\necho "$*" >>{self.asked}\ncat {self.said}\n')
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")

    def say(self, text: str) -> None:
        self.said.with_suffix(".new").write_text(text)
        self.said.with_suffix(".new").rename(self.said)

    def sampled(self, more: int) -> None:
        """Wait until they were asked so often from now on."""
        count = len(self.asked.read_text().splitlines()) if self.asked.exists() else 0
        until(lambda: self.asked.exists() and len(self.asked.read_text().splitlines()) >= count + more)


@pytest.fixture
def gpus(tmp_path, monkeypatch) -> Gpus:
    return Gpus(tmp_path, monkeypatch)


def test_a_gpu_that_is_not_used_ends_the_run(host, gpus):
    gpus.say("0, GPU-a, 90\n1, GPU-b, 3\n2, GPU-c, 0\n")
    host.start("exec sleep 1000", unused=(10, 1), gpus=GPUS)
    attempt = host.ended()
    assert (attempt.state, attempt.reason) == (AttemptState.EXITED, "unused")
    assert "--query-gpu=index,uuid,utilization.gpu" in gpus.asked.read_text()


@pytest.mark.parametrize(
    "text", ["0, GPU-a, 10\n1, GPU-b, 100\n", "0, GPU-a, [N/A]\n10, GPU-c, 0\n", "NVIDIA-SMI has failed\n"]
)
def test_a_gpu_that_is_used_or_cannot_be_read_ends_nothing(host, gpus, text):
    gpus.say(text)
    host.start("exec sleep 1000", unused=(10, 1), gpus=GPUS)
    gpus.sampled(8)
    assert host.poll().state is AttemptState.RUNNING


def test_how_gpus_are_used_is_told_as_long_as_the_run_lasts(host, gpus):
    """Only those of the run; values that cannot be read are left out."""
    gpus.say("0, GPU-a, 90\n1, GPU-b, 35\n2, GPU-c, 5\n")
    host.start("exec sleep 1000", unused=(10, 6), gpus=GPUS)
    until(lambda: host.poll().used == ((0, "GPU-a", 90), (1, "GPU-b", 35)))
    gpus.say("0, GPU-a, [N/A]\n1, GPU-b, 100\n")
    until(lambda: host.poll().used == ((1, "GPU-b", 100),))
    gpus.say("NVIDIA-SMI has failed\n")
    until(lambda: host.poll().used == ())
    gpus.say("0, GPU-a, 90\n")
    until(lambda: host.poll().used == ((0, "GPU-a", 90),))
    host.runner.stop(host.poll().attempt_id, 1)
    assert host.poll().used == ()


def test_a_gpu_is_watched_by_its_uuid_whatever_its_number(host, gpus):
    """A card was put in before it: the one that has its number now is not the rank's."""
    gpus.say("0, GPU-new, 0\n1, GPU-a, 90\n2, GPU-b, 40\n")
    host.start("exec sleep 1000", unused=(10, 1), gpus=GPUS)
    until(lambda: host.poll().used == ((1, "GPU-a", 90), (2, "GPU-b", 40)))
    gpus.sampled(8)
    assert host.poll().state is AttemptState.RUNNING
    gpus.say("0, GPU-new, 90\n1, GPU-a, 0\n2, GPU-b, 40\n")
    assert host.ended().reason == "unused"


def test_the_window_begins_anew_whenever_a_gpu_is_used(host, gpus):
    gpus.say("0, GPU-a, 0\n")
    host.start("exec sleep 1000", unused=(10, 6), gpus=("0",))
    for _ in range(3):
        gpus.sampled(10)
        gpus.say("0, GPU-a, 50\n")
        gpus.sampled(2)
        gpus.say("0, GPU-a, 0\n")
    assert host.poll().state is AttemptState.RUNNING
    assert host.ended().reason == "unused"


def test_the_gpus_of_the_environment_are_meant_where_none_is_named(host, gpus, monkeypatch):
    """As within a step of Slurm."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    gpus.say("0, GPU-a, 90\n3, GPU-d, 0\n")
    host.start("exec sleep 1000", unused=(10, 1))
    assert host.ended().reason == "unused"


# ------------------------------------------------------------------------------- answers that are none


@pytest.mark.parametrize(
    ("code", "written", "error", "text"),
    [
        (1, b"no such file", RunnerError, "`poll` gave exit code 1: no such file"),
        (128, b"", RunnerError, "`poll` gave exit code 128: it said nothing"),
        (129, b"", ConnectionLost, "`poll` gave exit code 129: it said nothing"),
        (-9, b"", ConnectionLost, "`poll` gave exit code -9: it said nothing"),
    ],
)
def test_a_script_that_was_killed_may_have_done_anything(code, written, error, text):
    """One that failed by itself did what it says."""
    with pytest.raises(error) as caught:
        checked(Finished(code, b"", written), "`poll`")
    assert str(caught.value).endswith(text)


@pytest.mark.parametrize(
    "answer", [b"", b"LOG ", b"LOG 3", b"LOG 3\nab", b"LOG 0", b"LOG x\nabc", b"LOG \nabc"]
)
def test_an_answer_that_was_cut_short_is_a_lost_connection(answer):
    """And no log that ends there."""
    with pytest.raises(ConnectionLost):
        counted(b"LOG ", answer, "the log")


def test_bytes_are_counted():
    """What a login writes before and after them is no part of the log."""
    assert counted(b"LOG ", b"Welcome\nLOG 3\nabcd", "the log") == b"abc"
    assert counted(b"LOG ", b"LOG 0\n", "the log") == b""


@pytest.mark.parametrize("line", [b"", b"a running", b"a asleep 7 - - 0 1 - -", b"a running 7 x - 0 1 - -"])
def test_an_answer_that_means_nothing_is_a_fault(line):
    with pytest.raises(RunnerError, match="cannot be read"):
        attempts_in(b"FLEETFORM-HOST 1 boot\n" + line + b"\nFLEETFORM-END\n")
