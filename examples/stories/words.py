"""The fixed vocabulary of the story corpus: who, with what, where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gender:
    """The word forms that agree with a character.

    Attributes:
        noun: What the character is called in the opening, such as "girl".
        subject: Subject pronoun.
        object: Object pronoun.
        possessive: Possessive determiner.
    """

    noun: str
    subject: str
    object: str
    possessive: str


GIRL = Gender("girl", "she", "her", "her")
BOY = Gender("boy", "he", "him", "his")


@dataclass(frozen=True)
class Child:
    """A named child, who may be the hero of a story or the hero's friend.

    Attributes:
        name: The name, which stays the same through a story.
        gender: The word forms that agree with the name.
        weight: How often this child is the hero, relative to the others.
    """

    name: str
    gender: Gender
    weight: int


CHILDREN = (
    Child("Lily", GIRL, 10),
    Child("Ben", BOY, 6),
    Child("Mia", GIRL, 4),
    Child("Tom", BOY, 4),
    Child("Anna", GIRL, 3),
    Child("Sam", BOY, 2),
    Child("Rose", GIRL, 2),
    Child("Max", BOY, 2),
    Child("Lucy", GIRL, 2),
    Child("Jack", BOY, 2),
)


@dataclass(frozen=True)
class Place:
    """Somewhere to play.

    Attributes:
        name: The noun, used after "the".
        spots: Where a lost thing may lie, as prepositional phrases.
        high: Something there that a thing can get stuck in or on, with its preposition.
        water: Something there that a thing can fall into.
    """

    name: str
    spots: tuple[str, ...]
    high: str
    water: str


PLACES = (
    Place(
        "park", ("under a bench", "behind a big tree", "near the swings"), "in a tall tree", "pond"
    ),
    Place("beach", ("behind a rock", "under a towel", "in the sand"), "on a high rock", "sea"),
    Place(
        "garden", ("under the flowers", "behind the gate", "in a bush"), "in a tall tree", "pond"
    ),
    Place("farm", ("in the hay", "behind the barn", "under a cart"), "on the barn", "river"),
    Place(
        "hill", ("in the tall grass", "under a tree", "behind a rock"), "in a tall tree", "river"
    ),
    Place("woods", ("behind a log", "under the leaves", "in a bush"), "in a tall tree", "river"),
)

COLORS = ("red", "blue", "green", "yellow", "pink", "white")

TOY_PLOTS: dict[str, tuple[str, ...]] = {
    "ball": ("taken", "lost", "lonely", "water", "stuck"),
    "kite": ("stuck", "broken", "lonely", "lost"),
    "doll": ("lost", "taken", "broken", "water"),
    "boat": ("water", "broken", "lonely", "lost"),
    "drum": ("broken", "lost", "lonely", "taken"),
    "bear": ("lost", "water", "taken"),
    "truck": ("lonely", "lost", "broken", "water"),
}
"""The toys, each with the plots it may have a part in, most likely first."""

ADULTS = {"mom": GIRL, "grandma": GIRL, "dad": BOY, "grandpa": BOY}
"""Grown-ups who give toys and mend them."""

ANIMALS: dict[str, tuple[str, ...]] = {
    "lost": ("rabbit", "dog", "bird"),
    "stuck": ("bird", "cat"),
    "water": ("duck", "dog", "frog"),
}
"""Animals that help, by plot, most likely first."""

THIEVES: dict[str, str] = {"puppy": "cookie", "goat": "carrot", "kitten": "fish"}
"""Animals that run off with a toy, each with the food it likes."""

TRAITS = ("little ", "", "happy ", "kind ")
"""What may stand before "girl" or "boy" in the opening."""
