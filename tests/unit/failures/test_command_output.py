"""The first error in real outputs of programs."""

from __future__ import annotations

import pytest

from mulligan.policies.failures.classify import classify_failure
from mulligan.policies.failures.command_output import MAX_LINE, first_error
from mulligan.policies.repair.instruction import reduce_failure_to_repair

RUFF = """\
F401 [*] `os` imported but unused
 --> a.py:1:8
  |
1 | import os
  |        ^^
  |
help: Remove unused import: `os`

Found 2 errors.
[*] 2 fixable with `--fix`.
"""
RUFF_CONCISE = """\
a.py:1:8: F401 [*] `os` imported but unused
a.py:4:1: E722 Do not use bare `except`
Found 2 errors.
"""
RUFF_SYNTAX = """\
invalid-syntax: Expected `)`, found newline
 --> s.py:1:8
  |
1 | def f(:
  |        ^
  |

Found 1 error.
"""
MYPY = """\
a.py:3: error: Incompatible return value type (got "int", expected "str")  [return-value]
a.py:4: error: Argument 1 to "f" has incompatible type "str"; expected "int"  [arg-type]
Found 2 errors in 1 file (checked 1 source file)
"""
TSC = """\
src/a.ts(1,7): error TS2322: Type 'string' is not assignable to type 'number'.
src/a.ts(2,1): error TS2304: Cannot find name 'foo'.
"""
TSC_PRETTY = """\
src/a.ts:1:7 - error TS2322: Type 'string' is not assignable to type 'number'.

1 const x: number = "a";
        ~

Found 1 error in src/a.ts:1
"""
GCC = """\
a.c: In function ‘main’:
a.c:2:21: warning: initialization of ‘int’ from ‘char *’ makes integer from pointer without a cast
    2 | int main(){ int x = "a"; foo() return 0; }
      |                     ^~~
a.c:2:31: error: expected ‘;’ before ‘return’
    2 | int main(){ int x = "a"; foo() return 0; }
      |                               ^~~~~~~
make: *** [Makefile:2: a.out] Error 1
"""
LINKER = """\
/usr/bin/ld: cc.o: in function `main':
l.c:(.text+0x5): undefined reference to `f'
collect2: error: ld returned 1 exit status
"""
CARGO = """\
   Compiling demo v0.1.0 (demo)
error[E0308]: mismatched types
 --> src/main.rs:2:18
  |
2 |     let x: i32 = "a";
  |            ---   ^^^ expected `i32`, found `&str`

For more information about this error, try `rustc --explain E0308`.
error: could not compile `demo` (bin "demo") due to 1 previous error
"""
GO_VET = """\
# demo
./main.go:6:2: fmt.Printf format %d has arg "a" of wrong type string
"""
GO_BUILD = """\
# demo
./main.go:5:2: undefined: foo
./main.go:7:9: too many errors
"""
JAVAC = """\
M.java:1: error: ';' expected
class M { void f() { int x = "a" } }
                                ^
1 error
"""
ESLINT = """\

a.js
  1:7  error  'x' is assigned a value but never used  no-unused-vars

✖ 1 problem (1 error, 0 warnings)
"""
TRACEBACK = """\
Traceback (most recent call last):
  File "check.py", line 9, in <module>
    main()
  File "check.py", line 5, in main
    return rows[3]
           ~~~~^^^
IndexError: list index out of range
"""
CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 3, in <module>
ZeroDivisionError: division by zero

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "a.py", line 5, in <module>
ValueError: bad
"""
UNITTEST = """\
FE
======================================================================
ERROR: test_b (__main__.T.test_b)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "t.py", line 4, in test_b
    raise KeyError("x")
KeyError: 'x'

======================================================================
FAIL: test_a (__main__.T.test_a)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "t.py", line 3, in test_a
    self.assertEqual(1, 2)
AssertionError: 1 != 2

----------------------------------------------------------------------
Ran 2 tests in 0.001s

FAILED (failures=1, errors=1)
"""
SYNTAX = """\
  File "s.py", line 1
    def f(:
          ^
SyntaxError: invalid syntax
"""
NODE = """\
e.js:1
function f() { null.x }
                    ^

TypeError: Cannot read properties of null (reading 'x')
    at f (e.js:1:21)

Node.js v20.20.2
"""
PYTEST = """\
F                                                                        [100%]
=================================== FAILURES ===================================
____________________________________ test_a ____________________________________

    def test_a():
>       assert 1 == 2
E       assert 1 == 2

test_x.py:2: AssertionError
=========================== short test summary info ============================
FAILED test_x.py::test_a - assert 1 == 2
1 failed in 0.07s
"""
MAKE = "make: *** No rule to make target 'nope'.  Stop.\n"


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (RUFF, "a.py:1:8: F401 [*] `os` imported but unused"),
        (RUFF_CONCISE, "a.py:1:8: F401 [*] `os` imported but unused"),
        (RUFF_SYNTAX, "s.py:1:8: invalid-syntax: Expected `)`, found newline"),
        (
            MYPY,
            'a.py:3: error: Incompatible return value type (got "int", expected "str")'
            "  [return-value]",
        ),
        (TSC, TSC.splitlines()[0]),
        (TSC_PRETTY, TSC_PRETTY.splitlines()[0]),
        (GCC, "a.c:2:31: error: expected ‘;’ before ‘return’"),
        (LINKER, "l.c:(.text+0x5): undefined reference to `f'"),
        (CARGO, "src/main.rs:2:18: error[E0308]: mismatched types"),
        (GO_VET, GO_VET.splitlines()[1]),
        (GO_BUILD, "./main.go:5:2: undefined: foo"),
        (JAVAC, "M.java:1: error: ';' expected"),
        (ESLINT, "1:7  error  'x' is assigned a value but never used  no-unused-vars"),
        (TRACEBACK, "check.py:5: IndexError: list index out of range"),
        (CHAINED, "a.py:5: ValueError: bad"),
        (UNITTEST, "t.py:4: KeyError: 'x'"),
        (SYNTAX, "s.py:1: SyntaxError: invalid syntax"),
        (NODE, "TypeError: Cannot read properties of null (reading 'x')"),
        (PYTEST, "FAILED test_x.py::test_a - assert 1 == 2"),
        (MAKE, "make: *** No rule to make target 'nope'.  Stop."),
        ("bash: line 1: nosuch: command not found\n", "bash: line 1: nosuch: command not found"),
        ("checking…\nthe answer has no title\n", "the answer has no title"),
        ("row 3 is wrong\nFound 1 error.\n", "row 3 is wrong"),
        ("Found 1 error.\n", "Found 1 error."),
        ("\n \n", ""),
    ],
)
def test_the_first_error_and_not_the_summary(output: str, error: str) -> None:
    assert first_error(output) == error
    assert first_error("", output) == error


def test_an_error_on_stdout_is_found_behind_a_warning_on_stderr() -> None:
    assert first_error("warning: no configuration\n", MYPY).startswith("a.py:3: error: ")
    assert first_error("make: *** [Makefile:2: x] Error 1\n", "no title\n") == "no title"


def test_hostile_output_is_cut() -> None:
    for hostile in ("x" * 5_000_000, "found 1 " * 500_000, "command " * 500_000, "a:1:1: " * 10**6):
        assert len(first_error(hostile)) <= MAX_LINE
    assert len(first_error("found 1 \n" * 500_000)) <= MAX_LINE


def test_the_instruction_names_the_first_error_of_any_program() -> None:
    evidence = {"argv": ["mypy", "a.py"], "exit_code": 1, "stdout_tail": MYPY}
    record = classify_failure({"kind": "command_failed", "evidence": evidence}, source="verify")
    suffix = reduce_failure_to_repair(record).prompt_suffix
    assert "a.py:3: error: Incompatible return value type" in suffix
    assert "Found 2 errors" not in suffix
