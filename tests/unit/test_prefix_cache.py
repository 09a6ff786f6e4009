import numpy as np
import pytest
from dubito.models.prefix_cache import PrefixCache

TOKEN_BYTES = 2 * 2 * 3 * 4  # keys and values of two layers, three float32 numbers each


def read(prompt):
    """Keys and values as a model has them, each of which tells the tokens up to it."""
    told = np.cumsum(np.array(prompt, np.float32) ** 2)
    layers = [(told * factor, told * -factor) for factor in (1, 10)]
    return [tuple(np.repeat(part[None, None, :, None], 3, axis=3) for part in layer) for layer in layers]


def found(cache, prompt):
    length, layers = cache.longest(prompt)
    for (keys, values), (own_keys, own_values) in zip(layers, read(prompt), strict=bool(layers)):
        assert np.array_equal(keys, own_keys[:, :, :length])
        assert np.array_equal(values, own_values[:, :, :length])
    return length


def kept(*prompts, most_tokens=100):
    cache = PrefixCache(most_tokens * TOKEN_BYTES)
    for prompt in prompts:
        cache.keep(prompt, read(prompt))
    return cache


@pytest.mark.parametrize(
    ("prompt", "length"),
    [
        ([1, 2, 3, 4, 5], 4),  # the whole, whose last token is read again for the logits
        ([1, 2, 3, 4, 5, 6, 7], 5),
        ([1, 2, 3], 2),
        ([1, 2, 9, 4, 5], 2),
        ([1, 8, 9, 9], 3),
        ([2, 3, 4], 0),
        ([1], 0),
        ([], 0),
    ],
)
def test_the_longest_start_in_common_is_found(prompt, length):
    assert found(kept([7, 7], [1, 2, 3, 4, 5], [1, 8, 9]), prompt) == length


def test_nothing_is_found_in_an_empty_one():
    assert PrefixCache(100).longest([1, 2]) == (0, [])
    assert kept([1, 2, 3], most_tokens=0).longest([1, 2, 3]) == (0, [])


def test_a_prompt_replaces_what_begins_it():
    cache = kept([1, 2], [1, 2, 3], [1, 2, 3], [1, 2, 3, 4])
    assert cache.nbytes == 4 * TOKEN_BYTES
    cache.keep([1, 2, 9], read([1, 2, 9]))
    assert cache.nbytes == 7 * TOKEN_BYTES


def test_what_was_of_no_use_for_longest_goes_first():
    cache = kept([1, 1, 1], [2, 2, 2], [3, 3, 3], most_tokens=9)
    assert found(cache, [1, 1, 5]) == 2
    cache.keep([4, 4, 4], read([4, 4, 4]))
    assert [found(cache, [token] * 4) for token in (1, 2, 3, 4)] == [3, 0, 3, 3]
    cache.keep([5] * 6, read([5] * 6))
    assert [found(cache, [token] * 4) for token in (1, 2, 3, 4, 5)] == [0, 0, 0, 3, 3]
    assert cache.nbytes == 9 * TOKEN_BYTES


def test_one_that_cannot_fit_drives_nobody_out():
    cache = kept([1, 1, 1], most_tokens=5)
    cache.keep([2] * 6, read([2] * 6))
    assert (found(cache, [1, 1, 1, 1]), found(cache, [2] * 6)) == (3, 0)


def test_memory_stays_within_its_bound():
    random = np.random.default_rng(0)
    cache = PrefixCache(40 * TOKEN_BYTES)
    for _ in range(200):
        prompt = random.integers(0, 3, random.integers(1, 50)).tolist()
        found(cache, prompt)
        cache.keep(prompt, read(prompt))
        assert cache.nbytes <= 40 * TOKEN_BYTES
    assert cache.nbytes > 0
