"""The suite's laws of ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from declarative.model.state import Record
from declarative.model.status import HARD, NOT_RELEASED, WAITING, RankState
from declarative.provider import PermanentError, TransientError
from declarative.provider.optional import Adjusts, Foretells, Gates, Terms, Tidies
from providers.testing.place import Base, Packed, Place


class Ranks(Base):
    """Starts, ends, stops, limits, environments, logs."""

    def test_a_rank_runs_to_its_end(self, place: Place, node: Record) -> None:
        """Commands run in one shell, in order; the exit code and both outputs are kept."""
        started = place.start(node, "train-0.1", "x=seen", "echo $x", "echo err >&2")
        assert started.state in {RankState.STARTING, RankState.RUNNING, RankState.SUCCEEDED}
        ended = place.ended(node, "train-0.1")
        assert (ended.state, ended.exit_code, ended.cause) == (RankState.SUCCEEDED, 0, None)
        assert ended.started_at is not None
        assert ended.ended_at is not None
        assert ended.started_at <= ended.ended_at
        assert place.log(node, "train-0.1") == "seen\nerr\n"

    def test_a_rank_that_fails_says_so(self, place: Place, node: Record) -> None:
        """The first command that fails ends the rank, with its exit code as the cause."""
        place.start(node, "train-0.1", "echo before", "exit 7", "echo after")
        ended = place.ended(node, "train-0.1")
        assert (ended.state, ended.exit_code, ended.cause) == (RankState.FAILED, 7, "exit code 7")
        assert place.log(node, "train-0.1") == "before\n"

    def test_an_attempt_starts_at_most_once(self, place: Place, node: Record) -> None:
        """However often, and by however many callers at once, its start is requested."""
        with ThreadPoolExecutor(8) as pool:
            tries = [pool.submit(place.start, node, "train-0.1", "echo begun; sleep 0.3") for _ in range(8)]
        assert not [e for e in (t.exception() for t in tries) if not isinstance(e, TransientError | None)]
        place.ended(node, "train-0.1")
        assert place.start(node, "train-0.1", "echo again").state is RankState.SUCCEEDED
        assert place.log(node, "train-0.1") == "begun\n"

    def test_what_never_started_is_none(self, place: Place, node: Record) -> None:
        """Neither poll nor stop makes an attempt of an unknown one, and its log is empty."""
        place.start(node, "train-0.1", "true")
        polled = place.provider.poll(node, ["train-0.1", "train-0.2"])
        assert set(polled) == {"train-0.1", "train-0.2"}
        assert polled["train-0.1"] is not None
        assert polled["train-0.2"] is None
        assert place.provider.poll(node, []) == {}
        assert place.provider.stop(node, "train-0.2", 0) is None
        assert place.poll(node, "train-0.2") is None

    def test_stop_ends_all_of_it(self, place: Place, node: Record) -> None:
        """TERM first, then KILL after the grace; to stop twice is the same as once."""
        child = "(trap '' TERM; echo deaf; while :; do sleep 0.1; done) & wait"
        place.start(node, "train-0.1", child)
        place.logged(node, "train-0.1", "deaf")
        stopped = place.provider.stop(node, "train-0.1", 1)
        assert stopped is not None
        assert stopped.state is RankState.STOPPED
        assert place.poll(node, "train-0.1") == stopped
        assert place.provider.stop(node, "train-0.1", 1) == stopped

    def test_stop_leaves_time_to_save(self, place: Place, node: Record) -> None:
        """A rank that ends by itself within the grace is not killed."""
        place.start(node, "train-0.1", "trap 'sleep 0.5; echo saved; exit 0' TERM; echo up; sleep 60 & wait")
        place.logged(node, "train-0.1", "up")
        stopped = place.provider.stop(node, "train-0.1", 20)
        assert stopped is not None
        assert stopped.state is RankState.STOPPED
        place.logged(node, "train-0.1", "saved\n")

    def test_a_rank_ends_at_its_limit(self, place: Place, node: Record) -> None:
        """Without a command that watches it."""
        place.start(node, "train-0.1", "sleep 60", max_seconds=1, stop_seconds=1)
        ended = place.ended(node, "train-0.1")
        assert (ended.state, ended.cause) == (RankState.FAILED, "max_duration reached")

    def test_a_gang_waits_behind_its_gate(self, place: Place, node: Record) -> None:
        """No command runs before the release, and each once after it; the limit counts from there."""
        if not isinstance(place.provider, Gates):
            return
        first = place.start(node, "train-0.1", "echo ran; sleep 60", gate_seconds=600, max_seconds=1)
        assert (first.state, first.cause, first.started_at) == (RankState.STARTING, WAITING, None)
        place.start(node, "train-1.1", "echo ran", gate_seconds=600)
        place.start(node, "train-2.1", "echo ran", gate_seconds=600)
        place.start(node, "train-3.1", "echo ran", gate_seconds=1)
        unheard = place.ended(node, "train-3.1")
        assert (unheard.state, unheard.cause, unheard.started_at) == (RankState.LOST, NOT_RELEASED, None)
        assert place.start(node, "train-0.1", "echo twice", gate_seconds=600) == first
        names = ["train-0.1", "train-1.1", "train-3.1", "train-9.1"]
        released = {n: s.state if s else None for n, s in place.provider.release(node, names).items()}
        assert released.pop("train-1.1") in {RankState.RUNNING, RankState.SUCCEEDED}
        assert list(released.values()) == [RankState.RUNNING, RankState.LOST, None]
        assert place.ended(node, "train-1.1").started_at is not None
        place.provider.release(node, names)
        assert place.ended(node, "train-0.1").cause == "max_duration reached"
        stopped = place.provider.stop(node, "train-2.1", 5)
        assert stopped is not None
        assert (stopped.state, stopped.started_at) == (RankState.STOPPED, None)
        assert place.provider.release(node, ["train-2.1"]) == {"train-2.1": stopped}
        ran = [place.log(node, f"train-{rank}.1").count("ran") for rank in range(4)]
        assert ran == [1, 1, 0, 0]

    def test_a_limit_can_be_changed(self, place: Place, node: Record) -> None:
        """While it runs: taken away, and set."""
        place.start(node, "train-0.1", "sleep 5.5", max_seconds=5, stop_seconds=1)
        place.provider.change_limit(node, "train-0.1", None)
        place.start(node, "train-1.1", "sleep 60", stop_seconds=1)
        place.provider.change_limit(node, "train-1.1", 1)
        assert place.ended(node, "train-1.1").cause == "max_duration reached"
        assert place.ended(node, "train-0.1").state is RankState.SUCCEEDED

    def test_what_a_rank_gets_to_stop_can_be_changed(self, place: Place, node: Record) -> None:
        """While it runs: a rank that its own limit ends gets the new time, and is killed after that."""
        if not isinstance(place.provider, Adjusts):
            pytest.skip("this provider ends nothing by itself")
        slow = "trap 'sleep 2.5; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"
        place.start(node, "train-0.1", slow, stop_seconds=1)
        place.start(node, "train-1.1", "trap '' TERM; echo up; while :; do sleep 0.1; done", stop_seconds=600)
        for attempt, seconds in (("train-0.1", 60), ("train-1.1", 1)):
            place.logged(node, attempt, "up\n")
            place.provider.adjust(node, attempt, Terms(stop_seconds=seconds))
            place.provider.change_limit(node, attempt, 1)
        assert place.ended(node, "train-0.1").cause == "max_duration reached"
        assert place.ended(node, "train-1.1").exit_code == 128 + 9
        place.logged(node, "train-0.1", "saved\n")

    def test_variables_arrive_as_they_are(self, place: Place, node: Record) -> None:
        """Quotes, newlines, dollars and other alphabets included."""
        value = "a 'b' \"c\"\n$HOME `d` \\ ünï 漢"
        assert place.run(node, "train-0.1", 'printf %s "$ODD"', env={"ODD": value}) == value

    def test_the_host_file_is_there_to_be_read(self, place: Place, node: Record) -> None:
        """With the given text, at the path that both variables name; without a text, there are none. The
        file of Open MPI's form is in place of the second, if the provider writes it.
        """
        text = "10.0.0.1 slots=8\n10.0.0.2 slots=8\n"
        both = 'cat "$FLEETFORM_MPI_HOSTFILE" "$DSTACK_MPI_HOSTFILE"'
        assert place.run(node, "train-0.1", both, hostfile=text) == text + text
        assert place.run(node, "train-1.1", "echo ${FLEETFORM_MPI_HOSTFILE-none}") == "none\n"
        own = place.run(node, "train-2.1", both, hostfile=text, hostfiles={"openmpi": "x\n"})
        assert own in (text + "x\n", text + text)

    def test_the_callers_secrets_stay_with_the_caller(
        self, place: Place, node: Record, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A rank has the variables that it declares, and those of the caller that are known to be public."""
        monkeypatch.setenv("FLEETFORM_VAR_PASSWORD", "hunter2")
        monkeypatch.setenv("SOME_CLOUD_KEY", "hunter3")
        assert "hunter" not in place.run(node, "train-0.1", "env")

    def test_a_rank_sees_its_gpus_and_no_others(self, place: Place, node: Record) -> None:
        """Whatever variable the declaration sets; none if it has no GPUs."""
        show = 'echo "[$CUDA_VISIBLE_DEVICES]"'
        env = {"CUDA_VISIBLE_DEVICES": "0,1"}
        assert place.run(node, "train-0.1", show, gpus=(2, 3), env=env) == "[2,3]\n"
        assert place.run(node, "train-1.1", show) == "[]\n"

    def test_hard_limits_are_had_or_nothing_starts(self, place: Place, node: Record) -> None:
        """As the node's readiness says before: a plan asks it, so that no start is refused."""
        can = place.provider.readiness([node])[node.address.name].can
        try:
            started = place.start(node, "train-0.1", "echo ran", cpus=(0,), memory_mib=256, hard=True)
        except PermanentError:
            assert can is not None
            assert HARD not in can
            assert place.poll(node, "train-0.1") is None
            assert place.log(node, "train-0.1") == ""
        else:
            assert can is None or HARD in can
            assert not isinstance(place.provider, Foretells) or HARD in place.provider.can()
            assert (started.confinement or "").startswith(HARD)
            assert place.ended(node, "train-0.1").state is RankState.SUCCEEDED

    def test_old_attempts_are_tidied_away(self, place: Place, node: Record) -> None:
        """Those of the named ranks before the first to keep; running ones and those of other ranks stay."""
        if not isinstance(place.provider, Tidies):
            pytest.skip("this provider keeps nothing")
        for attempt in ("train-0.1", "train-0.2", "other-0.1"):
            place.run(node, attempt, f"echo {attempt}")
        place.start(node, "runs-0.1", "sleep 60")
        for _ in range(2):
            place.provider.tidy(node, {"train-0": 2, "runs-0": 5, "none-0": 3})
        assert place.poll(node, "train-0.1") is None
        assert place.log(node, "train-0.1") == ""
        for attempt in ("train-0.2", "other-0.1"):
            assert place.log(node, attempt) == f"{attempt}\n"
        running = place.poll(node, "runs-0.1")
        assert running
        assert running.state is RankState.RUNNING

    def test_attempts_do_not_share_a_folder(self, place: Place, node: Record) -> None:
        """Each begins in an empty folder, or in one below it that the declaration names."""
        first = place.run(node, "train-0.1", "ls -A; pwd; touch x")
        second = place.run(node, "train-0.2", "ls -A; pwd; touch x", working_dir="a/b")
        assert len(first.splitlines()) == len(second.splitlines()) == 1
        assert second.endswith("/a/b\n")
        assert first != second

    def test_files_are_in_the_folder_of_each_attempt(self, place: Place, node: Record) -> None:
        """Its own copies, links and executables included, whole before its first command, and also with a
        `working_dir` below them.
        """
        odd, long = "d/ünï 'x'", "/".join(["long" * 10] * 5)
        files = Packed({"run": "#!/bin/sh\necho ran\n", odd: "a", long: "b", "d/e": ""}, {"d/link": "../run"})
        show = f'./d/link; cat "{odd}" {long}; echo; wc -c <d/e; rm -r run d'
        assert place.run(node, "train-0.1", show, files=files) == "ran\nab\n0\n"
        below = place.run(node, "train-0.2", "cd ..; " + show, files=files, working_dir="d")
        assert below == "ran\nab\n0\n"

    def test_files_of_one_attempt_come_once(self, place: Place, node: Record) -> None:
        """However often its start is requested: the attempt keeps what it changed in them."""
        place.run(node, "train-0.1", "echo mine >x; touch done", files=Packed({"x": "sent"}))
        again = place.start(node, "train-0.1", "true", files=Packed({"x": "sent", "y": ""}))
        assert again.state is RankState.SUCCEEDED
        assert place.run(node, "train-0.2", "cat ../train-0.1/x; ls ../train-0.1") == "mine\ndone\nx\n"

    def test_logs_are_read_by_offset(self, place: Place, node: Record) -> None:
        """In bytes: a reader continues where it stopped, without a gap or a repeat."""
        place.run(node, "train-0.1", "printf 'a\\303\\274b\\0c'")
        read = place.provider.read_log
        assert read(node, "train-0.1", 0) == b"a\xc3\xbcb\0c"
        assert read(node, "train-0.1", 2, 3) == b"\xbcb\0"
        assert read(node, "train-0.1", 6) == b""
        assert read(node, "train-0.1", 60) == b""

    def test_data_stays_on_a_volume(self, disks: Place, node: Record) -> None:
        """A rank on a later node reads what an earlier one wrote, at the path that its variable names."""
        volume = disks.volume()
        mounts: dict[str, Any] = {"volumes": {"/data": volume}, "env": {"FLEETFORM_VOLUME_DATA": "/data"}}
        held = disks.attach("train-0", volume, node)
        disks.start(node, "train-0.1", 'echo kept > "$FLEETFORM_VOLUME_DATA/file"', **mounts)
        assert disks.ended(node, "train-0.1").state is RankState.SUCCEEDED
        disks.provider.delete(held)
        disks.provider.delete(node)
        second = disks.after(node)
        disks.attach("other-0", volume, second)
        disks.start(second, "other-0.1", 'cat "$FLEETFORM_VOLUME_DATA/file"', **mounts)
        assert disks.ended(second, "other-0.1").state is RankState.SUCCEEDED
        assert disks.log(second, "other-0.1") == "kept\n"
