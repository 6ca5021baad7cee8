"""WebShop's catalogues: released and generated files, goals, splits and tasks."""

import copy
import json
import random
from collections import Counter

import pytest

from lit_treerl.data.webshop_tasks import WebShopTasks
from lit_treerl.envs.webshop.files import read_catalogue, write_catalogue
from lit_treerl.envs.webshop.generate import CatalogueRows, generate_catalogue
from lit_treerl.envs.webshop.goals import NO_CAP, PRICE_STEPS, Goal, all_goals, price_cap, split_goals
from lit_treerl.envs.webshop.make_shop import main
from lit_treerl.envs.webshop.products import read_products
from lit_treerl.envs.webshop.reward import same
from lit_treerl.envs.webshop.shop import ShopSettings, open_shop
from lit_treerl.envs.webshop.words import DEPARTMENTS
from shop_cases import ATTRIBUTES, HUMAN, LAMP, MUG, ROWS, SOFA, goal, products

SMALL = {"products": 200, "types": 12}


def test_products_are_read_as_the_released_files_mean_them():
    mug, sofa, lamp = products()
    assert (mug.query, mug.tag, mug.bullets) == (
        "travel mugs",
        "$10.0 to $25.5",
        ("Double walled steel", "Fits every car"),
    )
    assert mug.options == (("color", ("navy | blue", "red")), ("size", ("12  oz",)))
    assert mug.attributes == ("leak proof", "double walled")
    assert (sofa.price, sofa.tag, sofa.description) == (100.0, "$100.0", "")
    assert sofa.attributes == ("DUMMY_ATTR",)
    assert (lamp.price, lamp.tag) == (1299.0, "$1299.0")
    assert 10 < mug.price < 25.5
    assert products()[0].price == mug.price  # drawn from a range, always the same


def test_long_unknown_and_repeated_asins_are_left_out():
    rows = [MUG, MUG | {"asin": "b00mug0001"}, MUG | {"asin": "B00MUG00012"}, MUG | {"asin": "nan"}, LAMP]
    assert [product.asin for product in products(*rows)] == ["B00MUG0001", "B00LAMP003"]
    assert len(read_products(ROWS, {}, {}, limit=2)) == 2
    with pytest.raises(ValueError, match="no product"):
        products(MUG | {"asin": "nan"})


BROKEN = [
    (0, "name", None, None),  # null is no text
    (0, "name", 3, r"items_shuffle.json, product 1 \(B00MUG0001\): field 'name' must be a text, got int"),
    (1, "query", ..., r"product 2 \(B00SOFA002\): field 'query' is missing"),
    (0, "asin", ..., r"items_shuffle.json, product 1: field 'asin' is missing"),
    (0, "pricing", "ask", r"field 'pricing' must be as '\$10.00' or '\$10.00\$25.50', got 'ask'"),
    (0, "pricing", 3, r"field 'pricing'"),
    (0, "small_description", [1], r"field 'small_description' must be a list of texts, got a list with other values"),
    (0, "customization_options", [], None),
    (0, "customization_options", ["x"], r"field 'customization_options' must be an object of lists, got list"),
    (0, "customization_options", {"c": ["red"]}, r"field 'customization_options', 'c': must be a list of objects"),
    (0, "customization_options", {"c": [{}]}, r"'c': field 'value' is missing"),
]


@pytest.mark.parametrize(("place", "field", "value", "message"), BROKEN)
def test_broken_products_are_named(place, field, value, message):
    rows = copy.deepcopy(ROWS)
    rows[place][field] = value
    if value is ...:
        del rows[place][field]
    if message is None:
        assert len(read_products(rows, ATTRIBUTES, HUMAN)) == 3
        return
    with pytest.raises(ValueError, match=message):
        read_products(rows, ATTRIBUTES, HUMAN)


@pytest.mark.parametrize(
    ("attributes", "human", "message"),
    [
        ([], {}, "items_ins_v2.json, B00MUG0001: must be an object, got list"),
        (
            {"attributes": "soft"},
            {},
            "items_ins_v2.json, B00MUG0001: field 'attributes' must be a list of texts, got str",
        ),
        ({"instruction": "x"}, {}, "field 'instruction_attributes' must be a list of texts, got NoneType"),
        ({}, [], None),
        ({}, {"x": 1}, "items_human_ins.json, B00MUG0001: must be a list of instructions, got dict"),
        ({}, [1], "items_human_ins.json, B00MUG0001, instruction 1: must be an object, got int"),
        ({}, [{"instruction_attributes": []}], "instruction 1: field 'instruction' is missing"),
        (
            {},
            [{"instruction": "x", "instruction_attributes": ["y"], "instruction_options": [3]}],
            "'instruction_options'",
        ),
    ],
)
def test_broken_instructions_are_named(attributes, human, message):
    given = ([MUG], {MUG["asin"]: attributes or {}}, {MUG["asin"]: human})
    if attributes == []:
        given[1][MUG["asin"]] = [1]
    if message is None:
        assert read_products(*given)[0].human == ()
        return
    with pytest.raises(ValueError, match=message):
        read_products(*given)


def test_missing_and_broken_files_are_named_and_the_way_out(tmp_path):
    missing = f"there is no {tmp_path}/items_shuffle.json.*lit-treerl make-shop --out {tmp_path}"
    with pytest.raises(FileNotFoundError, match=missing):
        WebShopTasks(catalogue=str(tmp_path)).load()
    write_catalogue(CatalogueRows(ROWS, ATTRIBUTES, HUMAN), tmp_path)
    (tmp_path / "items_human_ins.json").unlink()
    assert read_catalogue(tmp_path, human=False).products == ROWS
    with pytest.raises(FileNotFoundError, match=r"there is no .*items_human_ins"):
        read_catalogue(tmp_path)
    (tmp_path / "items_ins_v2.json").write_text('{"B00')
    with pytest.raises(ValueError, match=r"items_ins_v2.json: is no JSON, or only a part of it was downloaded"):
        read_catalogue(tmp_path)
    (tmp_path / "items_shuffle.json").write_text("{}")
    with pytest.raises(ValueError, match=r"items_shuffle.json: must be a list of products, got dict"):
        read_catalogue(tmp_path)


# ---- goals ----


def test_goals_of_people_and_of_templates():
    mug = products(MUG)[0]
    [human] = all_goals([mug], "human")  # an instruction without attributes is no goal
    assert human.instruction == f"i want a leak proof mug in red, and price lower than {human.price_cap:.2f} dollars"
    assert (human.attributes, human.options, human.conditions) == (("leak proof",), ("red",), 2)
    synthetic = {goal.request: goal for goal in all_goals([mug], "synthetic")}
    assert set(synthetic) == {
        "find me leak proof travel mugs with color: navy | blue, and size: 12  oz",
        "find me leak proof travel mugs with color: red, and size: 12  oz",
    }
    assert {goal.options for goal in synthetic.values()} == {
        (("color", "navy | blue"), ("size", "12  oz")),
        (("color", "red"), ("size", "12  oz")),
    }
    assert len({goal.price_cap for goal in synthetic.values()}) == 1
    with pytest.raises(ValueError, match="no human goals; products: 1"):
        all_goals(products(SOFA), "human")


def test_price_caps_are_the_larger_of_two_of_the_next_four_tens():
    rng = random.Random(0)
    assert {price_cap(10.0, rng) for _ in range(200)} == {30.0, 40.0, 50.0}  # 20 is never the larger
    assert {price_cap(970.0, rng) for _ in range(50)} == {990.0}
    assert {price_cap(price, rng) for price in (980.0, 5000.0)} == {NO_CAP}
    lamp = all_goals(read_products([LAMP], {}, {LAMP["asin"]: HUMAN["B00MUG0001"]}), "human")[0]
    assert (lamp.price_cap, lamp.instruction) == (NO_CAP, "i want a leak proof mug in red")


def test_the_order_of_goals_is_that_of_seed_233():
    listed = [
        instruction.text for product in open_shop(ShopSettings(**SMALL)).products for instruction in product.human
    ]
    random.seed(233)
    random.shuffle(listed)
    assert [f"{goal.request}." for goal in open_shop(ShopSettings(**SMALL)).goals] == listed


def numbered(*requests: int) -> list[Goal]:
    return [goal(products()[0], request=str(number)) for number in requests]


def test_published_and_scaled_splits():
    goals = numbered(*range(3000))
    assert split_goals(goals, "test") == list(range(500))
    assert split_goals(goals, "validation") == list(range(500, 1500))
    assert split_goals(goals, "train") == list(range(1500, 3000))
    goals = numbered(*range(2994))
    assert [len(split_goals(goals, split)) for split in ("test", "validation", "train")] == [499, 998, 1497]
    repeated = numbered(0, 1, 2, 0, 3, 1, 4, 4, 3, 5, 0, 6)  # test: two, validation: four
    assert [split_goals(repeated, split) for split in ("test", "validation", "train")] == [
        [0, 1],
        [2, 4],
        [6, 7, 9, 11],
    ]
    with pytest.raises(ValueError, match="split must be"):
        split_goals(goals, "dev")


def test_a_goals_hash_is_what_is_asked_for():
    first = goal(products()[0], attributes=("a", "b"), options=("x",))
    again = goal(products()[1], attributes=("b", "a"), options=("x",), price_cap=3.0, instruction="other")
    assert first.hash == again.hash
    assert len(first.hash) == 16
    assert first.hash not in {
        goal(products()[0], attributes=("a",), options=("x",)).hash,
        goal(products()[0], attributes=("a", "b")).hash,
        goal(products()[0], attributes=("a", "b"), options=("x",), request="other").hash,
    }


@pytest.mark.parametrize("settings", [{}, SMALL, SMALL | {"goals": "synthetic"}], ids=str)
def test_splits_of_tasks_share_no_goal(settings):
    splits = {split: WebShopTasks(split, **settings).load() for split in ("test", "validation", "train")}
    hashes = {split: {task.extra["goal_hash"] for task in tasks} for split, tasks in splits.items()}
    assert not hashes["test"] & hashes["validation"]
    assert not hashes["train"] & (hashes["test"] | hashes["validation"])
    ids = [task.id for tasks in splits.values() for task in tasks]
    assert len(set(ids)) == len(ids)
    if not settings:
        assert [len(tasks) for tasks in splits.values()][:2] == [500, 1000]
        assert len(splits["train"]) > 3000
        assert splits["test"][0].extra["goal_index"] == 0


def test_tasks_tell_how_hard_they_are():
    tasks = WebShopTasks("train", **SMALL).load()
    assert {task.extra["conditions"] for task in tasks} >= {1, 2, 3, 4, 5}
    shop = open_shop(ShopSettings(**SMALL))
    sold = Counter(product.query for product in shop.products)
    assert all(task.extra["rivals"] == sold[shop.goals[task.extra["goal_index"]].query] for task in tasks)
    assert max(sold.values()) > 5 * min(sold.values())
    easy = WebShopTasks("train", limit=5, max_conditions=2, **SMALL).load()
    assert len(easy) == 5
    assert easy == [task for task in tasks if task.extra["conditions"] <= 2][:5]
    assert easy[0].question == shop.goals[easy[0].extra["goal_index"]].instruction
    with pytest.raises(ValueError, match="none with max_conditions 0"):
        WebShopTasks("train", max_conditions=0, **SMALL).load()
    with pytest.raises(ValueError, match="limit is 0"):
        WebShopTasks(limit=0)


# ---- generated catalogues ----


def test_default_catalogue_is_big_and_complete():
    rows = generate_catalogue()
    assert len(rows.products) == len({row["asin"] for row in rows.products}) == 2000
    assert all(
        len(row["asin"]) <= 10 and row["pricing"] and row["customization_options"] is not None for row in rows.products
    )
    assert len({row["query"] for row in rows.products}) == 48
    assert sum(map(len, rows.human.values())) > 4500
    shop = open_shop(ShopSettings())
    by_asin = {product.asin: product for product in shop.products}
    for asked in shop.goals:
        product = by_asin[asked.asin]
        assert set(asked.attributes) <= set(product.attributes)
        assert set(asked.options) <= {value for _, values in product.options for value in values}
        assert asked.price_cap > product.price
        assert asked.price_cap in PRICE_STEPS


def test_the_same_seed_gives_the_same_catalogue_and_another_another():
    assert generate_catalogue(60, 1, 6) == generate_catalogue(60, 1, 6)
    assert generate_catalogue(60, 1, 6).products != generate_catalogue(60, 2, 6).products
    for arguments, message in (((0, 0, 6), "products"), ((500_001, 0, 6), "products"), ((10, 0, 0), "types")):
        with pytest.raises(ValueError, match=message):
            generate_catalogue(*arguments)
    assert len(generate_catalogue(1, 0, 48).products) == 1


def test_no_word_of_the_shop_passes_for_another():
    types = [kind for department in DEPARTMENTS for kind in department.types]
    assert len({word for kind in types for word in kind.split()}) == sum(len(kind.split()) for kind in types)
    attributes = [attribute for department in DEPARTMENTS for attribute in department.attributes]
    assert len(set(attributes)) == len(attributes) == 64
    for department in DEPARTMENTS:
        names = [*department.attributes, *(value for _, values in department.options for value in values)]
        for a in names:
            assert [b for b in [*names, *department.types] if b != a and (same(a, b) or a in b)] == [], a


@pytest.mark.parametrize("style", ["human", "synthetic"])
def test_make_shop_writes_the_generated_shop(tmp_path, capsys, style):
    main(["--out", str(tmp_path / "new" / "shop"), "--products", "80", "--seed", "3", "--types", "6"])
    assert "80 products and" in capsys.readouterr().out
    written = open_shop(ShopSettings(str(tmp_path / "new" / "shop"), goals=style))
    generated = open_shop(ShopSettings(products=80, seed=3, types=6, goals=style))
    assert written.products == generated.products
    assert written.goals == generated.goals
    assert written.search("soft sweater") == generated.search("soft sweater") != ()
    rows = json.loads((tmp_path / "new" / "shop" / "items_shuffle.json").read_text())
    assert rows[0].keys() >= {"asin", "name", "query", "product_category", "small_description", "customization_options"}


@pytest.mark.parametrize("args", [[], ["--out", "x", "--products", "0"], ["--out", "x", "--types", "99"]], ids=str)
def test_make_shop_says_what_is_wrong(args, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(args)
    assert end.value.code == 2
    assert "make-shop: error: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_search_ranks_by_shared_stems_and_breaks_ties_by_place():
    shop = open_shop(ShopSettings(**SMALL))
    query = shop.products[0].query
    first = shop.products[shop.search(query)[0]]
    assert first.query == query
    assert shop.search(f"{query}s") == shop.search(query.upper())  # plural and case do not matter
    assert shop.search("zebra") == shop.search("") == shop.search("the of and") == ()
    assert len(shop.search("all by sold")) <= 50
