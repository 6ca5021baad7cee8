"""The embedded world: facts, passages, questions, and that retrieval is no ceiling."""

import pytest

from lit_treerl.data.embedded import World, embedded_tasks, perfect_action
from lit_treerl.data.embedded.agents import render_observation
from lit_treerl.data.embedded.demonstrations import bm25_search
from lit_treerl.data.embedded.names import NAME_PARTS
from lit_treerl.data.embedded.relations import KINDS, RELATIONS, decoy, relations_of
from lit_treerl.data.embedded.world import SPLITS, read_fact
from lit_treerl.envs.search_qa import SearchQA
from lit_treerl.retrieval.bm25 import BM25Retriever


@pytest.fixture(scope="module")
def world() -> World:
    return World(0)


@pytest.fixture(scope="module")
def search(world):
    return bm25_search(world.corpus())


def play(task, search, act=perfect_action, max_turns=8):
    """Actions and observations of a scripted agent until it answers."""
    actions, observations = [], []
    for _ in range(max_turns):
        actions.append(act(task, observations))
        if "<answer>" in actions[-1]:
            break
        query = actions[-1].split("<search> ")[1].removesuffix(" </search>")
        observations.append(render_observation(search(query)))
    return actions, observations


def test_counts(world):
    # one share: 100 persons x 4 relations + (30 towns, 10 nations, 30 companies, 40 books) x 3; 2 + 1 + 1 shares
    assert len(world.facts) == len(world.corpus()) == 4 * (100 * 4 + 110 * 3) == 2920
    assert [len(world.entities[split]["person"]) for split in SPLITS] == [200, 100, 100]
    assert len({row["id"] for row in world.corpus()}) == 2920


def test_facts_are_typed_and_stay_within_their_split(world):
    split_of, kind_of = {}, {}
    for split, by_kind in world.entities.items():
        for kind, names in by_kind.items():
            for name in names:
                assert name not in split_of  # names are disjoint between splits and kinds
                split_of[name], kind_of[name] = split, kind
    for (subject, name), fact in world.facts.items():
        assert fact.subject == subject != fact.object
        assert fact.relation is RELATIONS[name]
        assert split_of[fact.object] == split_of[subject]
        assert (kind_of[subject], kind_of[fact.object]) == (fact.relation.subject, fact.relation.object)


def test_equal_seeds_equal_worlds(world):
    assert World(0).corpus() == world.corpus()
    assert World(1).corpus() != world.corpus()


def test_passages_have_the_public_form_and_read_back(world):
    by_contents = {fact.contents: fact for fact in world.facts.values()}
    for row in world.corpus():
        title, text = row["contents"].split("\n")
        fact = by_contents[row["contents"]]
        assert title == f'"{fact.subject}"'
        assert text == f"{fact.subject} {fact.relation.phrase} {fact.object} ."
        assert read_fact(row["contents"]) == read_fact(text) == fact
    assert read_fact("nothing of the kind") is None


def test_words_mean_one_thing():
    meanings = [word for relation in RELATIONS.values() for word in (relation.common, relation.rare)]
    assert len(set(meanings)) == 2 * 16
    names = [word for lists in NAME_PARTS.values() for words in lists for word in words]
    assert len({word.lower() for word in names}) == len(names)
    said = {
        word for relation in RELATIONS.values() for word in (*relation.phrase.split(), relation.common, relation.rare)
    }
    assert not said & {word.lower() for word in names}
    assert all(relation.keyword in relation.phrase.split() for relation in RELATIONS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_decoys_permute_a_kinds_relations(kind):
    relations = relations_of(kind)
    assert len(relations) >= 3
    assert {decoy(relation).name for relation in relations} == {relation.name for relation in relations}
    assert all(decoy(relation) is not relation for relation in relations)


@pytest.mark.parametrize(("split", "n"), [("train", 3000), ("validation", 500), ("test", 500)])
def test_questions_are_true_and_distinct(world, split, n):
    tasks = embedded_tasks(split, n, hops=(2, 3, 4, 5, 6))
    assert len({task.question for task in tasks}) == len({task.id for task in tasks}) == n
    assert [task.extra["hops"] for task in tasks[:6]] == [2, 3, 4, 5, 6, 2]
    own = {name for names in world.entities[split].values() for name in names}
    for task in tasks:
        chain, words = task.extra["chain"], task.extra["words"]
        assert len(set(chain)) == len(chain) == task.extra["hops"] + 1
        assert set(chain) <= own
        for subject, name, value, word in zip(chain, task.extra["relations"], chain[1:], words, strict=False):
            assert world.facts[subject, name].object == value
            assert word in (RELATIONS[name].common, RELATIONS[name].rare)
        assert task.question == "What is " + "".join(f"the {word} of " for word in words[::-1]) + f"{chain[0]} ?"
        assert task.answers == (chain[-1],)
        assert task.data_source == f"embedded_{task.extra['hops']}hop"
        assert task.prompt == ({"role": "user", "content": task.question},)


def test_questions_depend_on_seed_and_split_alone():
    assert embedded_tasks("train", 50) == embedded_tasks("train", 80)[:50]
    assert embedded_tasks("train", 50, seed=1) != embedded_tasks("train", 50)
    assert not {t.id for t in embedded_tasks("train", 50)} & {t.id for t in embedded_tasks("test", 50)}


def test_common_and_rare_words_are_even():
    tasks = embedded_tasks("train", 1000)
    rare = [w == RELATIONS[r].rare for t in tasks for r, w in zip(t.extra["relations"], t.extra["words"], strict=True)]
    assert 0.45 < sum(rare) / len(rare) < 0.55  # 3,498 words, standard error 0.008


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"split": "dev", "n": 1}, "unknown split 'dev'; known are train, validation, test"),
        ({"split": "test", "n": 1, "hops": (0, 2)}, r"hops must be numbers from 1 to 6, got \[0, 2\]"),
        ({"split": "test", "n": 1, "hops": ()}, "hops must be"),
        ({"split": "test", "n": 2000, "hops": (1,)}, "found only 14.. distinct test questions .* 2000 were asked for"),
    ],
)
def test_bad_requests_say_what_is_wrong(kwargs, message):
    with pytest.raises(ValueError, match=message):
        embedded_tasks(**kwargs)


@pytest.mark.parametrize("stopwords", ["none", "english"])
def test_every_fact_is_found_first(world, stopwords):
    retriever = BM25Retriever.from_rows(world.corpus(), stopwords=stopwords, backend="numpy")
    facts = list(world.facts.values())
    found = retriever.search([f"{fact.subject} {fact.relation.keyword}" for fact in facts], topk=1)
    assert [passages[0].text for passages in found] == [fact.sentence for fact in facts]


def test_a_perfect_agent_answers_every_test_question(search):
    tasks = embedded_tasks("test", 300)
    for task in tasks:
        actions, observations = play(task, search)
        assert actions[-1] == f"<think> done </think> <answer> {task.answers[0]} </answer>"
        assert len(observations) == task.extra["hops"]


def test_a_perfect_agent_scores_one_through_the_real_environment(world):
    env = SearchQA(
        retriever=BM25Retriever.from_rows(world.corpus(), stopwords="none", backend="numpy"),
        topk=2,
        max_turns=8,
        passage_format="{text}",
        joiner=" ",
        nothing_found="none",
        lead=" ",
        padding=" ",
        trail=" ",
    )
    env.setup()
    search = bm25_search(world.corpus())
    for task in embedded_tasks("test", 60):
        assert env.reset(task) == [{"role": "user", "content": task.question}]
        observations = []
        while not (result := env.step(perfect_action(task, observations))).done:
            observations.append(result.observation + result.closing)
        assert (result.info["em"], result.info["format_valid"]) == (1.0, True)
        assert observations == play(task, search)[1]  # demonstrations look just as the environment does


def test_a_perfect_agent_reads_only_what_it_is_shown(search):
    task = embedded_tasks("test", 1, hops=(2,))[0]
    action = perfect_action(task, [" <information> none </information> "])
    assert action == "<think> done </think> <answer> none </answer>"
    start, middle = task.extra["chain"][:2]
    told = f" <information> {start} {RELATIONS[task.extra['relations'][0]].phrase} Some Body . </information> "
    assert "<search> Some Body " in perfect_action(task, [told])
    assert f"<search> {middle} " not in perfect_action(task, [told])
