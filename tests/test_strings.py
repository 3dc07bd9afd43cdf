"""Compare arrays of strings in a single buffer with lists and with numcodecs."""

import pickle

import numpy as np
import pytest
from numcodecs.vlen import VLenUTF8

from dmo.strings import Strings

TEXTS = ["b", "", "a\0", "straße", "日本", "b", *map(str, range(5000))]
EQUAL_LENGTHS = [f"img_{i:06}.jpg" for i in range(5000)]


@pytest.mark.parametrize("texts", [TEXTS, EQUAL_LENGTHS, ["x"], []], ids=["mixed", "equal lengths", "one", "none"])
def test_strings_are_a_sequence_in_the_layout_of_zarr(texts):
    strings = Strings.of(texts)
    assert (strings, list(strings), len(strings)) == (texts, texts, len(texts))
    assert strings.encoded().tobytes() == bytes(VLenUTF8().encode(np.array(texts, dtype=object)))
    assert [Strings.parse(strings.encoded()), pickle.loads(pickle.dumps(strings))] == [texts, texts]
    assert Strings.of(strings) is strings
    assert list(np.array(strings, dtype=object)) == texts


def test_strings_are_selected_like_a_list():
    strings, index = Strings.of(TEXTS), np.array([3, 0, 5005, 3])
    assert (strings[3], strings[-1], strings[np.int64(4)]) == ("straße", "4999", "日本")
    assert strings[index] == [TEXTS[i] for i in index]
    for where in (slice(2, 9), slice(9, 2), slice(None, None, -3), slice(5000, None), slice(0, 0)):
        assert strings[where] == TEXTS[where]
        assert Strings.parse(strings[where].encoded()) == TEXTS[where]
    assert (strings[2:9][1:3], strings[2:9][-1]) == (TEXTS[3:5], TEXTS[8])
    with pytest.raises(IndexError):
        strings[len(TEXTS)]


def test_strings_differ_from_other_sequences():
    strings = Strings.of(["a", "b"])
    for other in (["a"], ["a", "c"], "ab", Strings.of(["a", "b", "b"])):
        assert strings != other
    assert repr(Strings.of("abcdefg")) == "['a', 'b', 'c', 'd', 'e', 'f', ...]"


def test_parse_rejects_damaged_chunks():
    chunk = Strings.of(["abc", "é"]).encoded()
    for changed in (chunk[:-1], np.append(chunk, chunk[:1]), chunk[:6], chunk[:0]):
        assert Strings.parse(changed) is None
    for place, value in ((0, 3), (4, 255), (7, 127), (8, 0xC3), (15, 0xFF)):
        other = chunk.copy()
        other[place] = value
        assert Strings.parse(other) is None


def test_an_id_takes_at_most_its_text_and_twelve_bytes():
    strings = Strings.of(EQUAL_LENGTHS)
    arrays = [part for part in vars(strings).values() if isinstance(part, np.ndarray)]
    assert sum(part.nbytes for part in arrays) <= (len(EQUAL_LENGTHS[0]) + 12) * len(EQUAL_LENGTHS)
