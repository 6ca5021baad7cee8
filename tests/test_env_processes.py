"""Environments in worker processes: the same trees, and what happens when a process dies, hangs or complains."""

import os
import signal
import time

import pytest

from lit_treerl.envs.base import EnvironmentFailure
from lit_treerl.rollout import env_processes
from lit_treerl.rollout.env_processes import ProcessEnvironments
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import Status
from scripted import ScriptedSampler, StateEnv, ToyEnv, grow, wandering

TASKS = [Task(str(i), "test", f"question {i}", ("x",)) for i in range(3)]
SEARCH = TreeSearch(trees=1, expansions=2, rounds=1)


class Fragile(ToyEnv):
    """Dies, hangs or complains at some actions; ``file`` remembers over processes that it did so once."""

    def __init__(self, file: str = "", at: str = "b", how: str = "die") -> None:
        super().__init__()
        self.file, self.at, self.how = file, at, how

    def setup(self) -> None:
        if self.how == "setup":
            raise ValueError("no engine here")

    def _step(self, text):
        if text == "pid":
            return super()._step(f"pid {os.getpid()}")
        if text == self.at and self.how == "complain":
            raise KeyError("a bug of the environment")
        if text == self.at and self.how == "fail":
            raise EnvironmentFailure("the engine is out of order")
        if text == self.at and not (self.file and os.path.exists(self.file)):
            if self.file:
                open(self.file, "w").close()
            if self.how == "hang":
                time.sleep(60)
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._step(text)


@pytest.fixture
def hosted():
    hosts = []

    def host(env, processes=2, timeout_s=30.0, recycle_after=None):
        hosts.append(ProcessEnvironments(env, processes, timeout_s, recycle_after))
        hosts[-1].setup()
        return hosts[-1]

    yield host
    for one in hosts:
        one.close()


@pytest.mark.parametrize("kind", [ToyEnv, StateEnv])
def test_processes_grow_the_same_trees(kind, hosted):
    plain, processes = (grow(ScriptedSampler(wandering()), env, SEARCH, TASKS) for env in (kind(), hosted(kind())))
    assert [group.trees for group in processes] == [group.trees for group in plain]


def test_an_instance_keeps_its_process_and_instances_share_out(hosted):
    host = hosted(Fragile())
    seen = []
    for _ in range(4):
        env = host.spawn()
        env.reset(TASKS[0])
        first, second = env.step("pid").observation, env.step("pid").observation
        assert second.startswith(first)
        assert second.split()[2] == second.split()[4]
        seen.append(first)
    assert len(set(seen)) == 2
    assert seen[0] == seen[2] != seen[1] == seen[3]
    assert str(os.getpid()) not in " ".join(seen)


@pytest.mark.parametrize(("how", "timeout_s"), [("die", 30.0), ("hang", 3.0)])
def test_a_process_that_dies_or_hangs_is_replaced_and_its_instances_go_on(how, timeout_s, hosted, tmp_path):
    host = hosted(Fragile(str(tmp_path / "once"), how=how), processes=1, timeout_s=timeout_s)
    mine, other = host.spawn(), host.spawn()
    for env in (mine, other):
        env.reset(TASKS[0])
        env.step("a")
    assert mine.step("b").observation == "saw a b"
    assert other.step("c").observation == "saw a c"
    fork = host.spawn()
    fork.restore(mine.snapshot())
    assert fork.step("c").observation == "saw a b c"
    assert mine.step("answer x").reward == 1


def test_processes_are_replaced_after_so_many_episodes_and_those_under_way_go_on(hosted):
    host = hosted(Fragile(), processes=1, recycle_after=2)
    envs = [host.spawn() for _ in range(4)]
    pids = []
    for env in envs:
        env.reset(TASKS[0])
        pids.append(env.step("pid").observation.split()[2])
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert envs[2].step("a").observation == f"saw pid {pids[2]} a"
    fork = host.spawn()
    fork.restore(envs[3].snapshot())
    assert fork.step("answer x").reward == 1
    plain, fresh = (
        grow(ScriptedSampler(wandering()), env, SEARCH, TASKS)
        for env in (ToyEnv(), hosted(ToyEnv(), processes=1, recycle_after=1))
    )
    assert [group.trees for group in fresh] == [group.trees for group in plain]


def test_dying_twice_at_one_call_is_external_trouble_of_that_branch_alone(hosted):
    host = hosted(Fragile(), processes=1)
    other = host.spawn()
    other.reset(TASKS[1])
    env = host.spawn()
    env.reset(TASKS[0])
    with pytest.raises(EnvironmentFailure, match="process died, twice at step of task '0'"):
        env.step("b")
    assert other.step("a").observation == "saw a"


def test_a_tree_whose_process_keeps_dying_is_labelled_and_the_others_are_grown(hosted):
    doomed = derive_seed(0, "action", "1", 0, 0, 0)
    sampler = ScriptedSampler(lambda context, seed: "b" if seed == doomed else "answer x")
    groups = grow(sampler, hosted(Fragile()), TreeSearch(1, 0), TASKS)
    assert [group.trees[0].status[-1] for group in groups] == [Status.TERMINAL, Status.FAILED, Status.TERMINAL]


def test_errors_of_the_environment_come_through_with_their_trace(hosted):
    env = hosted(Fragile(how="fail")).spawn()
    env.reset(TASKS[0])
    with pytest.raises(EnvironmentFailure, match="out of order"):
        env.step("b")
    env = hosted(Fragile(how="complain")).spawn()
    env.reset(TASKS[0])
    with pytest.raises(KeyError, match="a bug of the environment") as caught:
        env.step("b")
    assert "test_env_processes.py" in "".join(caught.value.__notes__)
    assert env.step("c").observation == "saw c"


def test_an_environment_that_cannot_be_set_up_says_so():
    host = ProcessEnvironments(Fragile(how="setup"), 1, 30.0)
    with pytest.raises(ValueError, match="no engine here"):
        host.setup()
    host.close()


def test_instances_that_are_gone_are_forgotten(hosted):
    host = hosted(ToyEnv(), processes=1)
    env = host.spawn()
    env.reset(TASKS[0])
    del env
    (worker,) = host._workers
    assert list(worker.forgotten) == [0]
    other = host.spawn()
    other.reset(TASKS[0])
    assert not worker.forgotten


class HalfSaid(ToyEnv):
    """Its process dies within an answer, once."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def _step(self, text):
        if text == "b" and not os.path.exists(self.file):
            open(self.file, "w").close()
            return super()._step(Deadly(text))
        return super()._step(text)


class Deadly(str):
    """Kills the process that pickles it."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_process_that_dies_while_it_answers_is_replaced(hosted, tmp_path):
    env = hosted(HalfSaid(str(tmp_path / "once")), processes=1).spawn()
    env.reset(TASKS[0])
    env.step("a")
    assert env.step("b").observation == "saw a b"


class Slow(Fragile):
    def _step(self, text):
        time.sleep(0.6)
        return super()._step(text)


def test_a_replay_has_the_time_of_all_its_actions(hosted, tmp_path):
    env = hosted(Slow(str(tmp_path / "once")), processes=1, timeout_s=1.0).spawn()
    env.reset(TASKS[0])
    for text in "aaa":
        env.step(text)
    assert env.step("b").observation == "saw a a a b"


class Closing(ToyEnv):
    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def close(self) -> None:
        open(self.file, "w").close()


def test_environments_are_closed_in_their_process(tmp_path):
    host = ProcessEnvironments(Closing(str(tmp_path / "closed")), 1, 30.0)
    host.setup()
    host.close()
    assert (tmp_path / "closed").exists()


def test_a_failed_setup_leaves_no_process_and_fails_again():
    host = ProcessEnvironments(Fragile(how="setup"), 2, 30.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="no engine here"):
            host.setup()
        assert all(worker._process is None for worker in host._workers)


PATIENCE = 60  # seconds until something that waits in vain gives up


def wait_for(file: str) -> None:
    until = time.monotonic() + PATIENCE
    while not os.path.exists(file):
        assert time.monotonic() < until, f"{file} did not come"
        time.sleep(0.005)


class Gated(ToyEnv):
    """The first task's step says that it has begun, and waits for a file."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def _step(self, text):
        if self._task.id == "0":
            open(f"{self.folder}/begun", "w").close()
            wait_for(f"{self.folder}/gate")
        return super()._step(text)


def test_a_process_that_hangs_holds_up_its_own_instances_alone(hosted, tmp_path):
    """Instances take turns with the processes: tasks 1, 3 and 5 share the other one, and open the gate."""
    tasks = [Task(str(i), "test", f"question {i}", ("x",)) for i in range(6)]
    leaves = []

    def on_leaf(_: int) -> None:
        leaves.append((tmp_path / "gate").exists())
        if len(leaves) == 3:
            (tmp_path / "gate").touch()

    host = hosted(Gated(str(tmp_path)), timeout_s=PATIENCE / 2)
    groups = grow(ScriptedSampler(wandering()), host, TreeSearch(1, 0), tasks, on_leaf=on_leaf, env_workers=2)
    assert leaves == [False] * 3 + [True] * 3
    plain = grow(ScriptedSampler(wandering()), ToyEnv(), TreeSearch(1, 0), tasks)
    assert [group.trees for group in groups] == [group.trees for group in plain]


def test_closing_kills_a_process_that_hangs_and_no_other_takes_its_place(hosted, tmp_path, monkeypatch):
    monkeypatch.setattr(env_processes, "PATIENCE_S", 0.2)
    host = hosted(Gated(str(tmp_path)), processes=1, timeout_s=PATIENCE)
    env = host.spawn()
    env.reset(TASKS[0])
    hanging = env.executor.submit(env.step, "a")
    queued = env.executor.submit(env.step, "b")
    wait_for(str(tmp_path / "begun"))
    host.close()
    with pytest.raises(RuntimeError, match=r"closed; call setup\(\) first"):
        hanging.result()
    assert queued.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        host.spawn().reset(TASKS[0])
    host.setup()
    other = host.spawn()
    other.reset(TASKS[1])
    assert other.executor.submit(other.step, "a").result().observation == "saw a"


class HangsAtSetup(Fragile):
    """Its first process sets it up at once, later ones never."""

    def setup(self) -> None:
        if os.path.exists(self.file + ".setup"):
            time.sleep(PATIENCE)
        open(self.file + ".setup", "w").close()


def test_a_new_process_whose_setup_hangs_is_ended(hosted, tmp_path):
    env = hosted(HangsAtSetup(str(tmp_path / "once")), processes=1, timeout_s=0.5).spawn()
    env.reset(TASKS[0])
    with pytest.raises(EnvironmentFailure, match=r"did not answer within .* s and was ended, twice at step"):
        env.step("b")
