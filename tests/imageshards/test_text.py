import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageshards import text

_NAMES = st.lists(st.sampled_from(["\\", "udce9", "\udce9", "\udcff", "a", "é"])).map("".join)


def test_counted_uses_the_plural():
    assert text.counted(1, "class") == "1 class" and text.counted(1200, "class") == "1,200 classes"
    nouns = [text.counted(2, noun) for noun in ("batch", "epoch", "box", "copy", "key")]
    assert nouns == ["2 batches", "2 epochs", "2 boxes", "2 copies", "2 keys"]


def test_numeric_class_names_sort_first_by_value():
    ordered = ["-3", "-1", "0", "007", "7", "10", "11", "+1", "1.5", "1" * 19, "2 cats", "cat", "٣"]
    assert sorted({*ordered}, key=text.class_sort_key) == ordered


def test_a_long_name_loses_its_middle_and_a_long_line_is_wrapped_on_a_terminal(monkeypatch):
    assert text.shortened("short", 5) == "short" and text.shortened("long", 0) == ""
    assert text.shortened("n02112350_keeshond", 9) == "n021…hond"
    line = "  a " + "long " * 30 + "line"
    assert text.for_output(line) == line
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = text.for_output(line).split("\n")
    assert len(lines) > 1 and max(map(len, lines)) <= 80
    assert lines[0].startswith("  a long") and " ".join(" ".join(lines).split()) == line.strip()


def test_bytes_that_are_not_utf8_are_escaped():
    name = os.fsdecode(b"br\xe9 \xc3\xa9.jpg")
    assert text.printable(name) == text.key_of(name) == "br\\udce9 é.jpg"
    value = {name: [name, 1, None, (name,)], "é": {"x": name}}
    escaped = text.printable(name)
    assert text.printable_in(value) == {escaped: [escaped, 1, None, [escaped]], "é": {"x": escaped}}


def test_control_characters_become_visible():
    name = "a\x1b[2Jb\rc\x07\x9b\u202etxt\u2028 é\t日\n"
    assert text.visible(name) == "a\\u001b[2Jb\\u000dc\\u0007\\u009b\\u202etxt\\u2028 é\t日\n"


@given(_NAMES, _NAMES)
def test_different_names_have_different_keys(one, other):
    assert (text.key_of(one) == text.key_of(other)) == (one == other)
    assert text.printable(text.key_of(one)) == text.key_of(one)
    if "udc" not in one and one.isprintable():
        assert text.key_of(one) == one


@pytest.mark.parametrize("other", ["cat ", "c\u0430t", "ca\u200bt", "Cat"])
def test_a_name_that_looks_like_a_known_name_is_shown_escaped(other):
    said = text.about_look_alikes("cat", ["dog", other])
    assert said == f" ({ascii(other)} looks like it, but is not 'cat')"
    assert text.about_look_alikes("cat", ["dog", "cats"]) == ""
