from slug import slug


def test_lower_case() -> None:
    assert slug("Hello") == "hello"


def test_spaces() -> None:
    assert slug("Hello wide world") == "hello-wide-world"
