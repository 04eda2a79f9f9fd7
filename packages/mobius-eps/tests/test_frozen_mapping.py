"""`FrozenMapping`: a mapping in every respect, and immutable in every respect."""

from __future__ import annotations

import copy
import pickle

import pytest

from mobius_eps.frozen_mapping import FrozenMapping


def test_is_a_mapping() -> None:
    frozen = FrozenMapping({"b": "1", "a": "2"})
    assert dict(frozen) == {"b": "1", "a": "2"}
    assert list(frozen) == ["b", "a"]
    assert {**frozen, "c": "3"} == {"b": "1", "a": "2", "c": "3"}
    assert len(frozen) == 2
    assert frozen.get("missing") is None
    with pytest.raises(KeyError, match="missing"):
        frozen["missing"]


def test_equality_and_hash_ignore_order() -> None:
    one, other = FrozenMapping({"a": "1", "b": "2"}), FrozenMapping({"b": "2", "a": "1"})
    assert one == other == {"a": "1", "b": "2"}
    assert hash(one) == hash(other)
    assert one != FrozenMapping({"a": "1"})
    assert one != [("a", "1"), ("b", "2")]
    assert FrozenMapping() == {}


def test_the_original_may_change() -> None:
    items = {"a": "1"}
    frozen = FrozenMapping(items)
    items["a"] = "2"
    assert frozen == {"a": "1"}


def test_nothing_can_be_set_or_deleted() -> None:
    frozen = FrozenMapping({"a": "1"})
    with pytest.raises(AttributeError, match=r"immutable; cannot set '_items'"):
        frozen._items = {}
    with pytest.raises(AttributeError, match=r"immutable; cannot delete '_items'"):
        del frozen._items
    with pytest.raises(AttributeError):
        frozen.other = 1
    assert frozen == {"a": "1"}


def test_copies_are_itself_and_pickles_are_equal() -> None:
    frozen = FrozenMapping({"a": "1"})
    assert copy.copy(frozen) is frozen
    assert copy.deepcopy(frozen) is frozen
    assert pickle.loads(pickle.dumps(frozen)) == frozen


def test_repr_makes_an_equal_mapping() -> None:
    frozen = FrozenMapping({"a": "1"})
    assert eval(repr(frozen)) == frozen
