"""Checks that a story keeps to itself: its names, its toy, its place and its pronouns."""

from __future__ import annotations

import re

import words

NAMES = {child.name: child.gender for child in words.CHILDREN}
PRONOUNS = {
    words.GIRL: re.compile(r"\b(she|her)\b", re.IGNORECASE),
    words.BOY: re.compile(r"\b(he|him|his)\b", re.IGNORECASE),
}


def _mentions(story: str, vocabulary: list[str]) -> set[str]:
    """Returns the words of the vocabulary that occur in the story."""
    return set(re.findall(rf"\b({'|'.join(vocabulary)})\b", story))


def find_faults(story: str) -> list[str]:
    """Looks for contradictions in a story of the corpus or of a model trained on it.

    Args:
        story: The whole story.

    Returns:
        One line for each fault; an empty list if the story holds together.
    """
    faults = []
    names = _mentions(story, list(NAMES))
    if not 1 <= len(names) <= 2:
        faults.append(f"{len(names)} names: {sorted(names)}")
    pattern = rf"\b(?:{'|'.join(words.COLORS)}) \w+"
    toys = set(re.findall(pattern, story))
    known = {f"{color} {toy}" for color in words.COLORS for toy in words.TOY_PLOTS}
    if len(toys) != 1 or not toys <= known:
        faults.append(f"not one toy: {sorted(toys)}")
    places = _mentions(story, [place.name for place in words.PLACES])
    if len(places) != 1:
        faults.append(f"not one place: {sorted(places)}")
    people = {NAMES[name] for name in names}
    people |= {words.ADULTS[adult] for adult in _mentions(story, list(words.ADULTS))}
    for gender, pronoun in PRONOUNS.items():
        if gender not in people and pronoun.search(story):
            faults.append(f"a {gender.subject} without a {gender.noun}")
    if not story.endswith((".", "!", '"')):
        faults.append("cut off")
    return faults


def split_sentences(story: str) -> list[str]:
    """Splits a story after every full stop, question mark and exclamation mark."""
    return re.findall(r'[^.!?]+[.!?]"?', story)
