from slug import slug


def test_words_are_joined():
    assert slug("hello world") == "hello-world"


def test_capitals_and_digits_stay_readable():
    assert slug("Top 10, Explained") == "top-10-explained"
