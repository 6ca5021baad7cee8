"""Invented names: an entity's name is one word of each of its kind's two lists. No word serves two kinds."""

from __future__ import annotations

from lit_treerl.data.embedded.relations import Kind


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAME_PARTS: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "person": (
        _words(
            "Adela Anders Bastian Beata Casper Celia Damian Doris Edvin Elsa Fabian Freya Gerda Gideon Hanna Henrik "
            "Ida Isak Jana Jonas Katya Konrad Leona Linus Magda Marek Nadia Niklas Odile Oren Paula Pieter Rafael "
            "Renata Samuel Selma Tamara Tobias Ulrik Una Valter Vilma Wendel Wilma Ximena Yannick Yvette Zacha Zelda "
            "Agnes Bruno Clement"
        ),
        _words(
            "Abbot Aldous Barlow Bergen Calder Cassel Devlin Drummond Eklund Ellery Fenwick Foss Gallow Grell Hagen "
            "Hollin Ismay Jessop Jorund Kemble Kolar Lander Lovell Maddox Moreau Nessel Norling Oakley Orwin Pascoe "
            "Pruett Quill Radnor Rostow Sander Sivert Tarrant Trevor Ullman Varga Vickery Wendt Whitlock Yardley "
            "Yorke Zander Zorn Bellamy Crosby Denholm"
        ),
    ),
    "town": (
        _words("Port New Old North South East West Upper Lower Fort Saint Lake"),
        _words(
            "Veldra Almere Brannock Carrow Dunley Eskdale Farholt Grimsby Hexham Ilmen Jarvik Kelso Lodden Marsk "
            "Nordby Ostend Penrith Quorn Rydal Skara Tarbert Ulmen Vimmer Wexford"
        ),
    ),
    "nation": (
        _words("Greater Western Eastern Inner Outer Free"),
        _words("Arvonia Belmark Corvia Drasil Estmark Florin Galdia Hespera Ivonia Kestria Lorania Mirova"),
    ),
    "company": (
        _words(
            "Amber Cobalt Crimson Silver Golden Iron Copper Crystal Solar Lunar Polar Apex Zenith Vertex Delta Orbit"
        ),
        _words(
            "Forge Mills Systems Motors Optics Foods Textiles Shipping Mining Press Glass Steel Power Labs Tools Energy"
        ),
    ),
    "book": (
        _words(
            "Silent Hidden Broken Distant Burning Frozen Forgotten Endless Gentle Hollow Restless Secret Sleeping "
            "Wandering Winter Summer"
        ),
        _words(
            "Harbor Garden River Mirror Tower Orchard Lantern Island Forest Bridge Meadow Ocean Letter Window Shadow "
            "Journey"
        ),
    ),
}


def all_names(kind: Kind) -> list[str]:
    """Every name that an entity of ``kind`` can have, in a fixed order."""
    first, second = NAME_PARTS[kind]
    return [f"{a} {b}" for a in first for b in second]
