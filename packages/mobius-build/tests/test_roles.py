"""Package keys have roles; a role is never guessed."""

from __future__ import annotations

import pytest

from mobius.roles import ROLES, Role, UnknownRoleError, parse_role, role_of


@pytest.mark.parametrize(
    ("key", "role"),
    [
        ("model", "decoder"),
        ("decoder", "decoder"),
        ("vision", "vision"),
        ("embedding", "embedding"),
        ("encoder", "encoder"),
    ],
)
def test_table_of_the_specification(key: str, role: str) -> None:
    assert role_of(key) == role


def test_table_has_nothing_else() -> None:
    assert len(ROLES) == 5
    assert set(ROLES.values()) == set(Role)


def test_unknown_key() -> None:
    with pytest.raises(UnknownRoleError) as caught:
        role_of("decodr")
    assert str(caught.value) == (
        "Unknown package key 'decodr'. Supported: "
        "['decoder', 'embedding', 'encoder', 'model', 'vision']. Did you mean 'decoder'?"
    )


@pytest.mark.parametrize("role", Role)
def test_parse(role: Role) -> None:
    assert parse_role(str(role)) is role


@pytest.mark.parametrize("role", ["text", "", "Decoder", None, 3])
def test_unknown_role(role: object) -> None:
    with pytest.raises(UnknownRoleError, match="Unknown model role"):
        parse_role(role)  # type: ignore[arg-type]
