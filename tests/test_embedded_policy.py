"""Tokenizer, policy folder, demonstrations and their command line."""

import json
import random
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lit_treerl.data.embedded import POLICY, Noise, World, demonstrations, embedded_tasks
from lit_treerl.data.embedded.agents import noisy_episode
from lit_treerl.data.embedded.demonstrations import bm25_search
from lit_treerl.data.embedded.relations import RELATIONS, decoy
from lit_treerl.data.embedded.world import read_fact

NOISELESS = Noise(common=1, rare=1, stop=0, retry=0, copy=0)
TAGS = [f"<{s}{t}>" for t in ("think", "search", "information", "answer") for s in ("", "/")]


@pytest.fixture(scope="module")
def rows():
    return list(demonstrations([7, 8], 600, seed=3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return POLICY.init(tmp_path_factory.mktemp("policy"), seed=5)


@pytest.fixture(params=["built", "loaded"])
def tokenizer(request, folder):
    return POLICY.tokenizer() if request.param == "built" else AutoTokenizer.from_pretrained(folder)


def episode_text(row):
    return " ".join([row["question"], *(turn["action"] + turn["observation"] for turn in row["turns"])])


def test_tokenizer_knows_every_word(tokenizer, rows):
    assert len(tokenizer) == 294
    for text in [row["contents"].split("\n")[1] for row in World(0).corpus()] + [episode_text(row) for row in rows]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == " ".join(text.split())


def test_pieces_encode_as_the_whole(tokenizer, rows):
    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False)

    for row in rows[:100]:
        pieces = [row["question"], *(t[k] for t in row["turns"] for k in ("action", "observation"))]
        assert [token for piece in pieces for token in encode(piece)] == encode(episode_text(row))


def test_tags_are_words_and_unknown_words_are_unk(tokenizer):
    ids = tokenizer.encode(" ".join(TAGS), add_special_tokens=False)
    assert len(ids) == 8
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(ids, skip_special_tokens=True) == " ".join(TAGS)
    assert tokenizer.encode("Jonas flibber", add_special_tokens=False)[1] == tokenizer.unk_token_id
    assert [tokenizer.pad_token, tokenizer.eos_token, tokenizer.unk_token] == ["<pad>", "<eos>", "<unk>"]


def test_chat_template_renders_the_contents_alone(tokenizer):
    messages = [{"role": "user", "content": "What is the mayor of Port Veldra ?"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == messages[0]["content"]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == tokenizer.encode(messages[0]["content"], add_special_tokens=False)


def test_policy_folder(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) < 330_000
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.head_dim == 32
    assert (folder / "model.safetensors").stat().st_size < 700_000


def test_initial_weights_depend_on_the_seed_alone(folder, tmp_path):
    state = torch.get_rng_state()
    same, other = (AutoModelForCausalLM.from_pretrained(POLICY.init(tmp_path / str(s), seed=s)) for s in (5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    first = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(first.lm_head.weight, same.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_a_golden_episode_without_noise():
    world = World(0)
    task = embedded_tasks("test", 1, hops=(2,))[0]
    (start, middle, end), (first, second) = task.extra["chain"], (RELATIONS[r] for r in task.extra["relations"])
    facts = {name: world.facts[name, relation.name] for name, relation in ((start, first), (middle, second))}

    def search(query):
        return [facts[" ".join(query.split()[:2])].contents]

    row = noisy_episode(task, search, random.Random(0), noise=NOISELESS)
    words = task.extra["words"]
    assert row["turns"] == [
        {
            "action": f"<think> next {words[0]} </think> <search> {start} {first.keyword} </search>",
            "observation": f" <information> {start} {first.phrase} {middle} . </information> ",
        },
        {
            "action": f"<think> next {words[1]} </think> <search> {middle} {second.keyword} </search>",
            "observation": f" <information> {middle} {second.phrase} {end} . </information> ",
        },
        {"action": f"<think> done </think> <answer> {end} </answer>", "observation": ""},
    ]
    assert row["reward"] == 1.0
    assert row["prompt"] == [{"role": "user", "content": task.question}]


def test_noise_leaves_room_and_covers_all_hops(rows):
    assert {row["data_source"] for row in rows} == {f"embedded_{h}hop" for h in range(1, 7)}
    assert 0.1 < sum(row["reward"] for row in rows) / len(rows) < 0.4
    assert max(len(episode_text(row).split()) for row in rows) < 300
    assert all(2 <= len(row["turns"]) <= 8 for row in rows)
    assert all(row["turns"][-1]["action"].endswith("</answer>") for row in rows)


def test_keywords_are_drawn_as_the_noise_says(rows):
    by_word = {word: relation for relation in RELATIONS.values() for word in (relation.common, relation.rare)}
    drawn = {"common": [0, 0, 0], "rare": [0, 0, 0]}
    for row in rows:
        for turn in row["turns"][:-1]:
            word = turn["action"].split()[2]
            keyword, wanted = turn["action"].split()[-2], by_word[word]
            kind = "common" if word == wanted.common else "rare"
            outcome = 0 if keyword == wanted.keyword else 1 if keyword == decoy(wanted).keyword else 2
            drawn[kind][outcome] += 1
    common, rare = (sum(counts) for counts in drawn.values())
    assert abs(drawn["common"][0] / common - 0.93) < 0.03
    assert abs(drawn["rare"][0] / rare - 0.3) < 0.05
    assert abs(drawn["rare"][1] / rare - 0.7 * 0.6) < 0.05


def test_certain_noise():
    task = embedded_tasks("test", 1, hops=(6,))[0]
    search = bm25_search(World(0).corpus())
    rng = random.Random(0)
    stopped = noisy_episode(task, search, rng, Noise(common=1, rare=1, stop=1))
    assert len(stopped["turns"]) == 2  # never before the first hop
    wrong = noisy_episode(task, search, rng, Noise(common=0, rare=0, decoy=1, stop=0, retry=1))
    assert len(wrong["turns"]) == 8  # retries the first hop until the turns are spent
    assert wrong["reward"] == 0.0
    copied = noisy_episode(task, lambda q: search(q)[1:], rng, Noise(common=1, rare=1, stop=1, copy=1))
    fact = read_fact(search(f"{task.extra['chain'][0]} {RELATIONS[task.extra['relations'][0]].keyword}")[1])
    assert copied["turns"][-1]["action"].split("<answer> ")[1].removesuffix(" </answer>") in (fact.subject, fact.object)


def test_demonstrations_are_reproducible(rows):
    assert list(demonstrations([7, 8], 20, seed=3)) == rows[:20]
    assert list(demonstrations([7, 8], 20, seed=4)) != rows[:20]


def test_command_line(tmp_path, rows):
    command = [sys.executable, "-m", "lit_treerl.data.embedded"]
    out = tmp_path / "new" / "demos.jsonl"
    options = ["--out", str(out), "-n", "20", "--worlds", "7", "8", "--seed", "3"]
    subprocess.run([*command, *options], check=True, capture_output=True)
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows[:20]
    nothing = subprocess.run(command, capture_output=True, text=True)
    assert nothing.returncode == 2
    assert "give --out FILE, --init-policy DIR or both" in nothing.stderr
