"""ALFWorld in worker processes: states cross from one to another, and an engine that dies costs its branch only."""

import os
import random
import signal

import pytest

pytest.importorskip("alfworld")

from lit_treerl.data.alfworld_tasks import AlfworldTasks
from lit_treerl.envs.alfworld.env import ALFWorld
from lit_treerl.envs.base import EnvironmentFailure
from lit_treerl.rollout.env_processes import ProcessEnvironments


class DeadlyWorld(ALFWorld):
    """Its process dies at one command."""

    def _execute(self, command):
        if command == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._execute(command)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIT_TREERL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield AlfworldTasks("train", n=3, receptacles=6, distractors=(2, 4)).load()


def test_states_cross_processes_and_a_dead_engine_costs_its_branch_only(tasks):
    host = ProcessEnvironments(DeadlyWorld(), 2, 60.0)
    host.setup()
    try:
        rng, plain = random.Random(0), ALFWorld()
        one, other, doomed = host.spawn(), host.spawn(), host.spawn()  # doomed shares the process of one
        for task in tasks:
            assert one.reset(task) == plain.reset(task)
            for _ in range(8):
                turn = f"<action>{rng.choice(plain.snapshot()[0].scene.commands)}</action>"
                result = one.step(turn)
                assert result == plain.step(turn)
                if result.done:
                    break
                other.restore(one.snapshot())  # in the other process
                assert other.step("<action>inventory</action>").observation.strip().startswith("You are")
        doomed.reset(tasks[0])
        with pytest.raises(EnvironmentFailure, match="died, twice at step of task"):
            doomed.step("<action>die</action>")
        if not result.done:
            assert one.step("<action>look</action>") == plain.step("<action>look</action>")
        assert one.reset(tasks[1]) == plain.reset(tasks[1])
    finally:
        host.close()
