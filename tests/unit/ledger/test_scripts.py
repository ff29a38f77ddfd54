"""Each script of the ledger gets the shared definitions that it uses, and no others."""

from __future__ import annotations

import pytest
import redis

from mulligan.workers.ledger.connection.scripts import SCRIPTS, assemble, definitions_in
from mulligan.workers.ledger.fake_redis import fake_client

SHARED = definitions_in("""\
-- A comment that mentions unused.
local P = KEYS[1]
local function key(id)
  return P .. 'unused:' .. id
end

-- unused
local function unused() return 1 end
local function both(id) return later(id) end
local function later(id) return key(id) end
""")


@pytest.fixture
def fake() -> redis.Redis:
    return fake_client()


def assembled(script: str) -> set[str]:
    text = assemble(script, SHARED)
    return {name for name in ("key", "unused", "both", "later") if f"name == '{name}'" in text}


def test_gets_what_its_definitions_use_in_turn() -> None:
    assert assembled("return both(1)") == {"both", "later", "key"}


def test_a_function_is_built_by_its_first_call(fake: redis.Redis) -> None:
    """Given definitions in any order, then each script builds those that it calls, once."""
    script = """\
local built = rawget(F, 'both')
local answer = { built and 'early' or 'late', both('1'), rawget(F, 'later') and 'built' }
answer[4] = rawequal(both, both) and 'once'
return answer"""
    text = assemble(script, SHARED)
    assert fake.eval(text, 1, "p:") == ["late", "p:unused:1", "built", "once"]


def test_a_variable_named_like_a_shared_function_is_refused(fake: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="unexpected symbol"):
        fake.eval(assemble("local key = 1\nreturn key", SHARED), 1, "p:")


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
    assert assembled(script) == set()


@pytest.mark.parametrize(
    "script",
    ["return 'a' ..unused()", "return { unused }", "return '--' .. unused()", "return #unused()"],
)
def test_finds_a_name_wherever_it_is_used(script: str) -> None:
    assert assembled(script) == {"unused"}


def test_refuses_a_shared_statement_that_defines_nothing() -> None:
    with pytest.raises(ValueError, match="not a definition"):
        definitions_in("local P = KEYS[1]\nredis.call('PING')\n")


def test_a_small_script_stays_small() -> None:
    assert "function" not in SCRIPTS["swap"].text
    assert "provider" not in SCRIPTS["read_job"].text
