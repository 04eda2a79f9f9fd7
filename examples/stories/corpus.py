"""A small grammar of English stories.

A story has a hero who owns a toy, something that goes wrong with the toy, and somebody who helps.
Names, pronouns, the toy and the place agree from the first sentence to the last.

No choice is uniform: each list of options is ordered from likely to unlikely, and each hero
starts the lists at a different option. A model that learns the grammar therefore has a clear
favourite at every choice, and a different story for every hero.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import plots
import words

T = TypeVar("T")

SHARE_OF_FRIENDS = 0.8
"""How often a friend comes along, unless the story is about a lonely child."""

SKEW = 2.5
"""How much likelier an option is than the next."""

LEAST_WEIGHT = 0.1
"""The smallest weight of an option; the first one has 1."""

SHARE_OF_EXTRAS = 0.7
"""How often an optional sentence is kept."""


@dataclass(frozen=True)
class Chooser:
    """Draws from ordered options, the first ones much more often than the last ones.

    Attributes:
        rng: The source of randomness.
        shift: How many options to move from the front of a list to its end before drawing.
    """

    rng: random.Random
    shift: int = 0

    def pick(self, options: Sequence[T]) -> T:
        """Returns one of the options."""
        start = self.shift % len(options)
        rotated = [*options[start:], *options[:start]]
        weights = [max(SKEW**-rank, LEAST_WEIGHT) for rank in range(len(rotated))]
        return self.rng.choices(rotated, weights)[0]

    def maybe(self, sentence: str) -> list[str]:
        """Returns the sentence alone in a list, or now and then an empty list."""
        return [sentence] if self.rng.random() < SHARE_OF_EXTRAS else []


def _cast(rng: random.Random) -> tuple[words.Child, words.Child, int]:
    """Returns a hero, another child as the friend, and the hero's index."""
    heroes = range(len(words.CHILDREN))
    index = rng.choices(heroes, [child.weight for child in words.CHILDREN])[0]
    others = [*words.CHILDREN[index + 1 :], *words.CHILDREN[:index]]
    return words.CHILDREN[index], Chooser(rng).pick(others), index


def _slots(rng: random.Random) -> tuple[dict[str, str], str, Chooser]:
    """Draws everything a story refers to.

    Args:
        rng: The source of randomness.

    Returns:
        The text of every slot, the plot, and the hero's chooser.
    """
    hero, friend, index = _cast(rng)
    own = Chooser(rng, index)
    plain = Chooser(rng)
    noun = own.pick(tuple(words.TOY_PLOTS))
    plot = plain.pick(words.TOY_PLOTS[noun])
    place = own.pick(words.PLACES)
    right = own.pick(place.spots)
    thief = own.pick(tuple(words.THIEVES))
    adult = own.pick(tuple(words.ADULTS))
    gender = hero.gender
    slots = {
        "hero": hero.name,
        "friend": friend.name,
        "kid_friend": friend.gender.noun,
        "he_friend": friend.gender.subject,
        "He_friend": friend.gender.subject.capitalize(),
        "trait": plain.pick(words.TRAITS),
        "kid": gender.noun,
        "she": gender.subject,
        "She": gender.subject.capitalize(),
        "her": gender.possessive,
        "Her": gender.possessive.capitalize(),
        "them": gender.object,
        "toy": f"{own.pick(words.COLORS)} {noun}",
        "place": place.name,
        "high": place.high,
        "water": place.water,
        "right": right,
        "wrong": plain.pick([spot for spot in place.spots if spot != right]),
        "giver": own.pick(tuple(words.ADULTS)),
        "adult": adult,
        "He_adult": words.ADULTS[adult].subject.capitalize(),
        "thief": thief,
        "food": words.THIEVES[thief],
        "animal": own.pick(words.ANIMALS.get(plot, ("",))),
        "state": plots.STATES.get(plot, ""),
    }
    return slots, plot, own


def _beginning(own: Chooser, with_friend: bool) -> list[str]:
    """Returns templates that introduce the hero and the toy and go to the place."""
    opening = Chooser(own.rng).pick(plots.OPENINGS)
    owning, more = plots.FOUND if "{toy}" in opening else own.pick(plots.OWNING)
    outing = own.pick(plots.OUTING_TOGETHER if with_friend else plots.OUTING_ALONE)
    return [opening, owning, *own.maybe(more), outing]


def _trouble(own: Chooser, plot: str) -> list[str]:
    """Returns templates of what goes wrong and how the hero takes it."""
    trouble = [own.pick(plots.PROBLEMS[plot]), own.pick(plots.STRUGGLES[plot])]
    if plot == "lonely":
        return trouble
    return [*trouble, *own.maybe(own.pick(plots.FEELINGS))]


def _rescue_by_friend(own: Chooser, plot: str) -> list[str]:
    """Returns templates in which the friend helps."""
    return [
        own.pick(plots.FRIEND_OFFERS),
        own.pick(plots.FRIEND_FIXES[plot]),
        own.pick(plots.THANKS),
        *own.maybe(own.pick(plots.AFTERWARDS)),
    ]


def _rescue_without_friend(own: Chooser, plot: str) -> list[str]:
    """Returns templates in which an animal or a grown-up helps, or the hero alone copes."""
    offer = [own.pick(plots.ANIMAL_OFFERS)] if plot in words.ANIMALS else []
    thanks = own.pick(plots.JOY if plot == "taken" else plots.THANKS)
    return [*offer, own.pick(plots.LONE_FIXES[plot]), thanks]


def _comfort(own: Chooser) -> list[str]:
    """Returns templates in which the hero helps a lonely child."""
    return [
        own.pick(plots.FRIEND_FIXES["lonely"]),
        own.pick(plots.FRIEND_THANKS),
        *own.maybe(own.pick(plots.AFTERWARDS)),
    ]


def write_story(rng: random.Random) -> str:
    """Writes one story.

    Args:
        rng: The source of randomness.

    Returns:
        The story, as one paragraph.
    """
    slots, plot, own = _slots(rng)
    with_friend = plot != "lonely" and rng.random() < SHARE_OF_FRIENDS
    if plot == "lonely":
        rescue = _comfort(own)
    elif with_friend:
        slots["helper"] = slots["friend"]
        rescue = _rescue_by_friend(own, plot)
    else:
        animal = slots["animal"]
        slots["helper"] = f"little {animal}" if animal else slots["adult"].capitalize()
        rescue = _rescue_without_friend(own, plot)
    ending = own.pick(plots.ENDINGS[plot])
    text = [*_beginning(own, with_friend), *_trouble(own, plot), *rescue, ending]
    return " ".join(text).format_map(slots)


def write_corpus(count: int, seed: int) -> list[str]:
    """Writes stories that depend only on the seed.

    Args:
        count: How many stories to write.
        seed: Seed of the random choices.

    Returns:
        The stories, in the order they were drawn.
    """
    rng = random.Random(seed)
    return [write_story(rng) for _ in range(count)]
