"""WebShop's embedded policy: its words, its demonstrations, the seed that ships, and the configs that use it."""

import pytest
import yaml
from transformers import AutoTokenizer

from lit_treerl.cli import main
from lit_treerl.data.episodes import JSONLEpisodes
from lit_treerl.data.webshop import PAGES, POLICY, SEED_POLICY, SHOP, WebShopDemonstrations
from lit_treerl.data.webshop_tasks import WebShopTasks
from lit_treerl.envs.command_protocol import well_formed_command
from lit_treerl.envs.webshop import Shopper, WebShop, shopping_episode
from lit_treerl.envs.webshop.shopper import Noise
from lit_treerl.rollout.tokens import Tokens
from runs import CONFIGS, newest

SHOPS = (1000, 1001)
LIMITS = yaml.safe_load((CONFIGS / "webshop/rollout.yaml").read_text())["limits"]


@pytest.fixture(scope="module")
def rows():
    return WebShopDemonstrations(n=400, shops=SHOPS, seed=3).load()


@pytest.fixture(scope="module", params=["built", "shipped"])
def tokenizer(request):
    return POLICY.tokenizer() if request.param == "built" else AutoTokenizer.from_pretrained(SEED_POLICY)


def pieces(row):
    turns = [turn[key] for turn in row["turns"] for key in ("action", "observation")]
    return [row["prompt"][0]["content"], *turns]


def test_tokenizer_knows_every_word_of_demonstrations(tokenizer, rows):
    for row in rows:
        ids = tokenizer.encode(text := " ".join(pieces(row)), add_special_tokens=False)
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == " ".join(text.split())


def test_pieces_encode_as_the_whole(tokenizer, rows):
    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False)

    for row in rows[:100]:
        parts = [token for piece in pieces(row) for token in encode(piece)]
        assert parts == encode(" ".join(pieces(row)))


def test_tokenizer_knows_the_pages_that_wrong_turns_lead_to(tokenizer):
    env = WebShop(**SHOP, **PAGES)
    task = WebShopTasks("test", limit=1, **SHOP).load()[0]
    env.reset(task)
    turns = ["no tags", "<action> click[ buy now ] </action>", "<action> search[ of ] </action>"]
    turns += ["<action> search[ glass ] </action>", *["<action> click[ next > ] </action>"] * 3]
    turns += ["<action> click[ < prev ] </action>"]
    seen = [env.step(f"<think> a </think> {turn}" if "<action>" in turn else turn).observation for turn in turns]
    env.step(f"<action> click[ {env.shop.products[env._page.hits[6]].asin} ] </action>")
    seen += [
        env.step(f"<action> click[ {name} ] </action>").observation
        for name in ("description", "< prev", "reviews", "< prev", "features", "back to search")
    ]
    assert "Total results: 0)" in seen[2]
    assert "Page 4 " in seen[6]
    assert all(tokenizer.unk_token_id not in tokenizer.encode(text, add_special_tokens=False) for text in seen)


def test_demonstrations_fit_the_limits(rows):
    tokens = Tokens(POLICY.tokenizer())
    lengths = sorted(sum(len(tokens.plain(piece)) for piece in pieces(row)) for row in rows)
    assert lengths[len(rows) // 2] < 250
    assert lengths[-1] <= LIMITS["max_context"] <= POLICY.max_positions
    for row in rows:
        for turn in row["turns"]:
            assert len(tokens.plain(turn["action"])) <= LIMITS["max_new_tokens"]
            assert len(tokens.plain(turn["observation"])) <= LIMITS["max_observation_tokens"]


def test_demonstrations_are_reproducible(rows):
    assert WebShopDemonstrations(n=20, shops=SHOPS, seed=3).load() == rows[:20]
    assert WebShopDemonstrations(n=20, shops=SHOPS, seed=4).load() != rows[:20]


def test_demonstrations_ask_for_nothing_that_is_held_out(rows):
    held_out = {
        task.extra["goal_hash"] for split in ("validation", "test") for task in WebShopTasks(split, **SHOP).load()
    }
    elsewhere = {
        task.extra["goal_hash"]
        for split in ("train", "validation")
        for task in WebShopTasks(split, seed=1000, **SHOP).load()
    }
    assert len(held_out) > 1000
    assert elsewhere & held_out  # another shop does ask for the same now and then
    assert not {row["goal_hash"] for row in rows} & held_out


def test_demonstrations_leave_room_to_learn(rows):
    assert 0.15 < sum(row["score"] == 1.0 for row in rows) / len(rows) < 0.4
    assert all(well_formed_command(turn["action"]) for row in rows for turn in row["turns"])
    assert all(row["turns"][-1]["action"].endswith("click[ buy now ] </action>") for row in rows)
    assert all(row["turns"][-1]["observation"] == "" for row in rows)


def test_a_shopper_that_knows_only_colors():
    env, tasks = WebShop(**SHOP, **PAGES), WebShopTasks("test", limit=40, **SHOP).load()
    noise = Noise(0.0, 0.0, 0.0, 0.0, 0.0, only_color=1.0)
    rows = [shopping_episode(env, task, Shopper(task.question, noise, spaced=True)) for task in tasks]
    others = [any(f" {name} " in task.question for name in ("size", "material")) for task in tasks]
    assert 0 < sum(others) < len(tasks)
    assert [row["score"] == 1.0 for row in rows] == [not other for other in others]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"n": 0}, "n must be at least 1"), ({"shops": ()}, "at least one"), ({"shops": (0, 7)}, "other than held_out")],
)
def test_wrong_settings_are_told(settings, message):
    with pytest.raises(ValueError, match=message):
        WebShopDemonstrations(**settings)


def test_configs_show_pages_as_the_demonstrations_do():
    shown = yaml.safe_load((CONFIGS / "webshop/env.yaml").read_text())["init_args"]
    assert {key: shown[key] for key in (*SHOP, *PAGES)} == SHOP | PAGES
    splits = yaml.safe_load((CONFIGS / "webshop/data.yaml").read_text())["init_args"]
    sizes = {}
    for name in ("train", "validation", "test"):
        settings = splits[name]["init_args"]
        assert {key: settings[key] for key in SHOP} == SHOP
        sizes[name] = len(WebShopTasks(**settings).load())
    assert sizes == {"train": 1182, "validation": 200, "test": 394}


def test_seed_policy_folder():
    assert (SEED_POLICY / "model.safetensors").stat().st_size < 1_000_000
    assert sum(path.stat().st_size for path in SEED_POLICY.iterdir()) < 2_000_000
    loaded = AutoTokenizer.from_pretrained(SEED_POLICY)
    assert loaded.get_vocab() == POLICY.tokenizer().get_vocab()
    config = yaml.safe_load((SEED_POLICY / "config.json").read_text())
    assert (config["vocab_size"], config["dtype"]) == (len(POLICY.vocabulary()), "bfloat16")


@pytest.mark.filterwarnings("ignore")
def test_seed_policy_shops_and_errs(tmp_path):
    """Greedy on 24 test goals: it keeps to the form and buys, but hardly ever all that is asked for."""
    configs = ("--config", str(CONFIGS / "grpo.yaml"), "--config", str(CONFIGS / "env/webshop.yaml"))
    small = ("--data.test.limit", "24", "--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.set_num_threads", lambda _: None)
        main(["predict", *configs, *small, "--trainer.enable_progress_bar", "false"])
    rows = JSONLEpisodes(str(newest(tmp_path) / "episodes.jsonl")).load()
    assert len(rows) == 24
    assert sum(row["info"]["format_valid"] for row in rows) >= 20
    assert sum(row["info"]["score"] > 0 for row in rows) >= 15
    assert 1 <= sum(row["info"]["success"] for row in rows) <= 14
