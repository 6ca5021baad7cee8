"""ALFWorld's embedded policy and its demonstrations."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
import torch

pytest.importorskip("alfworld")

from lit_treerl.data.alfworld import AlfworldDemonstrations, HouseholdNoise, household_episode
from lit_treerl.data.alfworld.policy import POLICY
from lit_treerl.data.alfworld_tasks import AlfworldTasks
from lit_treerl.envs.alfworld.env import ALFWorld
from lit_treerl.policies import load_tokenizer, policy_path
from lit_treerl.rollout.grower import RolloutLimits, TreeGrower
from lit_treerl.rollout.tokens import Tokens
from lit_treerl.sampling.transformers import TransformersSampler
from lit_treerl.trees.search import TreeSearch

SMALL = {"receptacles": 8, "alike": 2, "distractors": (2, 5)}
SURE = HouseholdNoise(untreated=0, confused=0, overlooked=0, misplaced=0)


def world(**settings) -> ALFWorld:
    texts = {"prompt_template": "{task} . {observation}", "feedback_template": " {observation} "}
    env = ALFWorld(intro="room", context="growing", max_turns=20, **texts, **settings)
    env.setup()
    return env


@pytest.fixture(scope="module")
def rows():
    games = AlfworldTasks("train", n=48, seed=1000, **SMALL)
    return AlfworldDemonstrations(world(), games, n=96).load()


def text_of(row) -> str:
    return row["prompt"][0]["content"] + "".join(turn["action"] + turn["observation"] for turn in row["turns"])


@pytest.mark.parametrize("shipped", [False, True])
def test_the_tokenizer_knows_every_word_and_pieces_encode_as_the_whole(shipped, rows):
    tokenizer = load_tokenizer("embedded-alfworld") if shipped else POLICY.tokenizer()

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False)

    for row in rows:
        ids = encode(text_of(row))
        assert tokenizer.unk_token_id not in ids
        pieces = [row["prompt"][0]["content"], *(t[k] for t in row["turns"] for k in ("action", "observation"))]
        assert [token for piece in pieces for token in encode(piece)] == ids
        for turn in row["turns"]:  # what is sampled is read as it was meant
            assert tokenizer.decode(encode(turn["action"])) == turn["action"]


def test_demonstrations_come_in_equal_numbers_of_the_games_and_repeat(rows):
    games = AlfworldTasks("train", n=48, seed=1000, **SMALL)
    assert AlfworldDemonstrations(world(), games, n=96).load() == rows
    assert len({row["id"] for row in rows}) == 48
    others = {task.extra["game"] for task in AlfworldTasks("train", n=48, seed=0, **SMALL).load()}
    assert not others & {task.extra["game"] for task in games.load()}


def test_the_noisy_agent_fails_where_it_forgets_and_wins_where_it_does_not():
    env, rng = world(), random.Random(0)
    tasks = AlfworldTasks("train", n=24, seed=7, **SMALL).load()
    kinds = {"clean": "clean", "heat": "heat", "cool": "cool"}
    for task in tasks:
        sure = household_episode(env, task, SURE, rng)
        assert sure["reward"] == 1.0
        treated = [verb for verb in kinds if verb in task.extra["task_type"]]
        forgetful = household_episode(env, task, replace(SURE, untreated=1.0), rng)
        assert forgetful["reward"] == float(not treated)
        if treated:
            assert forgetful["turns"][-1]["action"] == "<think> done </think> <action> look </action>"
        confused = household_episode(env, task, replace(SURE, confused=1.0), rng)
        done = re.findall(r"<action> (clean|heat|cool) ", text_of(confused))
        assert (confused["reward"], set(done) & set(treated)) == (float(not treated), set())


def test_the_policy_is_small_and_wins_some_games_of_rooms_held_out():
    torch.set_num_threads(1)
    tokens = Tokens(load_tokenizer("embedded-alfworld"))
    sampler = TransformersSampler(max_batch=32)
    sampler.start(policy_path("embedded-alfworld"), tokens.tokenizer, max_context=1024)
    limits = RolloutLimits(max_new_tokens=24, max_context=1024, max_observation_tokens=96)
    tasks = AlfworldTasks("valid_unseen", n=24, seed=0, **SMALL).load()
    env = world()
    env.runs_in = "caller"
    groups = TreeGrower(sampler, env, tokens, TreeSearch(1, 0), limits, temperature=0).grow(tasks, [1] * len(tasks))
    leaves = [tree.info[leaf] for group in groups for tree, leaf in group.leaves()]
    won = [info["success"] for info in leaves]
    assert 0.15 <= sum(won) / len(won) <= 0.85  # room to learn, and something to learn from
    assert sum(info["format_valid"] for info in leaves) >= 20
