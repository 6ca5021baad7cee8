"""The scripted shopper, and the words it needs."""

import random

import pytest

from lit_treerl.data.webshop_tasks import WebShopTasks
from lit_treerl.envs.command_env import Scene
from lit_treerl.envs.command_protocol import well_formed_command
from lit_treerl.envs.webshop import Shopper, WebShop, shopping_episode
from lit_treerl.envs.webshop.generate import vocabulary
from lit_treerl.envs.webshop.shopper import Noise

SMALL = {"products": 200, "types": 12}


def play(tasks, env, noise=None):
    return [
        shopping_episode(
            env, task, Shopper(task.question, noise, random.Random(number), max_turns=env.max_turns, spaced=env.spaced)
        )
        for number, task in enumerate(tasks)
    ]


@pytest.mark.parametrize("settings", [{}, SMALL, SMALL | {"per_page": 4}, SMALL | {"repeat_task": True}], ids=str)
def test_the_perfect_shopper_buys_what_is_asked_for(settings):
    shared = {name: settings[name] for name in settings if name in SMALL}
    tasks = WebShopTasks("test", limit=200, **shared).load()
    episodes = play(tasks, WebShop(**settings, reward="success"))
    assert sum(episode["reward"] == 1.0 for episode in episodes) >= 0.98 * len(tasks)
    assert all(well_formed_command(turn["action"]) for episode in episodes for turn in episode["turns"])


def test_the_noisy_shopper_leaves_room_to_learn():
    tasks = WebShopTasks("test", limit=200).load()
    episodes = play(tasks, WebShop(reward="score"), Noise())
    perfect = sum(episode["reward"] == 1.0 for episode in episodes) / len(tasks)
    assert 0.3 < perfect < 0.8
    assert all(episode["turns"][-1]["action"].endswith("click[buy now] </action>") for episode in episodes)
    assert episodes == play(tasks, WebShop(reward="score"), Noise())


@pytest.mark.parametrize("context", ["window", "growing"])
def test_episodes_are_rows_to_learn_from(context):
    env = WebShop(**SMALL, context=context)
    task = WebShopTasks("train", limit=1, **SMALL).load()[0]
    row = shopping_episode(env, task)
    assert (row["id"], row["question"], row["prompt"]) == (task.id, task.question, env.reset(task))
    for turn in row["turns"]:
        result = env.step(turn["action"])
        assert (turn["prompt"], turn["observation"]) == (result.prompt, result.observation + result.closing)
    assert row["turns"][-1]["prompt"] is None
    assert all((turn["prompt"] is None) == (context == "growing") for turn in row["turns"][:-1])
    assert (result.done, result.info["score"]) == (True, row["score"])


@pytest.mark.parametrize("settings", [{}, SMALL, {"products": 50, "types": 3, "seed": 5}], ids=str)
def test_vocabulary_covers_what_is_read_and_written(settings):
    words = vocabulary(settings.get("products", 2000), settings.get("types", 48))
    assert len(set(words)) == len(words)
    env, seen = WebShop(**settings, spaced=True), set()
    for number, task in enumerate(WebShopTasks("train", limit=150, **settings).load()):
        env.reset(task)
        shopper = Shopper(task.question, Noise(wrong_item=0.5), random.Random(number), spaced=True)
        while not env.scene.done:
            seen |= {*task.question.split(), *env.scene.text.split(), *" ".join(env.scene.commands).split()}
            thought, command = shopper.act(env.scene)
            seen |= {*thought.split(), *command.split()}
            env.step(f"<action>{command}</action>")
        for product in env.shop.products:
            seen |= {*product.description.split(), *" ".join(product.bullets).split()}
    assert seen - set(words) == set()


def test_a_small_shop_has_few_words():
    assert len(vocabulary(products=200, types=12)) < 300
    assert len(vocabulary()) < 500
    assert set(vocabulary(products=200, types=6)) < set(vocabulary(products=2000, types=48))


@pytest.mark.parametrize(
    "scene",
    [
        Scene("Search"),
        Scene(
            "Back to Search [SEP] Page 1 (Total results: 0) [SEP] Next >", ("click[back to search]", "click[next >]")
        ),
        Scene("", ("click[back to search]", "click[< prev]", "click[buy now]")),
    ],
)
def test_shoppers_always_have_something_to_do(scene):
    for instruction in ("", "price lower than", "\u00e9 \u203a $3"):
        thought, command = Shopper(instruction).act(scene)
        assert thought
        assert command.endswith("]")


def test_shoppers_get_by_in_a_shop_of_real_looking_goals():
    env = WebShop(**SMALL, goals="synthetic", reward="score")
    tasks = WebShopTasks("test", limit=100, goals="synthetic", **SMALL).load()
    episodes = play(tasks, env)
    assert sum(episode["score"] for episode in episodes) > 0.7 * len(tasks)
