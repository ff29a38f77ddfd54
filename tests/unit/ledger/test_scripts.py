"""Each script of the ledger gets the shared definitions that it uses, and no others."""

from __future__ import annotations

import pytest

from mulligan.workers.ledger.connection.scripts import SCRIPTS, assemble, definitions_in

SHARED = definitions_in("""\
-- A comment that mentions unused.
local P = KEYS[1]
local later
local function key(id)
  return P .. 'unused:' .. id
end

-- unused
local function unused() return 1 end
local function both(id) return later(id) end
function later(id) return key(id) end
""")


def assembled(script: str) -> list[str]:
    return [d.text for d in SHARED if d.text in assemble(script, SHARED)]


def test_gets_what_its_definitions_use_in_turn() -> None:
    text = assemble("return both(1)", SHARED)
    assert "unused()" not in text
    assert [
        text.index(part) for part in ("local P", "local later", "function key", "function later")
    ]
    assert text.index("local P") < text.index("local later") < text.index("function key")
    assert text.endswith("return both(1)")


@pytest.mark.parametrize(
    "script",
    [
        "return 'unused'",
        'return "it\'s unused"',
        "-- unused",
        "return R.unused",
        "return 'a\\'unused'",
    ],
)
def test_ignores_names_in_texts_comments_and_fields(script: str) -> None:
    assert assembled(script) == []


@pytest.mark.parametrize(
    "script",
    ["return 'a' ..unused()", "return { unused }", "return '--' .. unused()", "return #unused()"],
)
def test_finds_a_name_wherever_it_is_used(script: str) -> None:
    assert assembled(script) == ["local function unused() return 1 end"]


def test_refuses_a_shared_statement_that_defines_nothing() -> None:
    with pytest.raises(ValueError, match="not a definition"):
        definitions_in("local P = KEYS[1]\nredis.call('PING')\n")


def test_a_small_script_stays_small() -> None:
    assert "function" not in SCRIPTS["swap"].text
    assert "provider" not in SCRIPTS["read_job"].text
