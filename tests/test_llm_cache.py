"""The LLM over its paged cache: prefix hits, several answers to one prompt, and memory that comes back."""

from __future__ import annotations

import pytest
from tiny import tiny_llm

from minillm.decoding.sampling import SamplingParams
from minillm.llm import LLM

SYSTEM = "You are a helpful assistant. "
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def blocks_in_use(llm: LLM) -> int:
    pool = llm.cache.pool
    return pool.num_blocks - pool.available


@pytest.mark.parametrize("options", [{"prefix_index": "hash"}, {"prefix_index": "radix"}, {"block_size": 1},
                                     {"enable_prefix_caching": False}, {"attention": "reference"}])
def test_the_text_is_the_same_with_and_without_a_prefix_hit(options) -> None:
    fresh = tiny_llm(enable_prefix_caching=False)
    llm = tiny_llm(**options)
    prompts = [SYSTEM + "Hi?", SYSTEM + "Why?", SYSTEM + "Hi? And why?", SYSTEM]
    for prompt in [*prompts, *prompts]:
        (output,), (expected,) = llm.generate(prompt, GREEDY), fresh.generate(prompt, GREEDY)
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids
        assert expected.num_cached_tokens == 0
    assert (output.num_cached_tokens > 0) == options.get("enable_prefix_caching", True)
    assert blocks_in_use(llm) == 0


def test_cached_tokens_are_counted_exactly() -> None:
    llm = tiny_llm()
    counts = [llm.generate(prompt, GREEDY)[0].num_cached_tokens for prompt in (
        "x" * 40, "x" * 40, "x" * 33 + "y" * 7, "x" * 48, "z" * 40)]
    # blocks of 16, never the last token; the 48 x are found in the first 32: x was not what followed
    assert counts == [0, 32, 32, 32, 0]
    stats = llm.cache.tables.stats
    assert (stats.prompt_tokens, stats.hit_tokens) == (40 + 40 + 40 + 48 + 40, sum(counts))


def test_a_second_turn_starts_from_the_first_ones_answer() -> None:
    llm = tiny_llm(prefix_index="radix")
    (first,) = llm.generate("tell me", GREEDY)
    text = [*first.prompt_token_ids, *first.outputs[0].token_ids]
    (second,) = llm.generate([*text, 1, 2, 3], GREEDY)
    assert second.num_cached_tokens == len(text) - 1  # the last token of the answer was chosen, but not run


def test_n_answers_share_the_prompt_and_draw_like_single_ones() -> None:
    """Answer i of n is what the seed + i gives alone."""
    params = SamplingParams(n=4, temperature=1.0, seed=11, max_tokens=12, ignore_eos=True)
    llm = tiny_llm(max_num_seqs=8)
    two = llm.generate(["hello", "what is it?"], params)
    for prompt, output in zip(("hello", "what is it?"), two):
        assert [answer.index for answer in output.outputs] == [0, 1, 2, 3]
        for i, answer in enumerate(output.outputs):
            alone = tiny_llm().generate(prompt, SamplingParams(temperature=1.0, seed=11 + i, max_tokens=12,
                                                               ignore_eos=True))[0].outputs[0]
            assert (answer.token_ids, answer.text) == (alone.token_ids, alone.text)
        assert len({tuple(answer.token_ids) for answer in output.outputs}) == 4
    assert blocks_in_use(llm) == 0


def test_answers_that_end_early_leave_the_others_alone() -> None:
    llm = tiny_llm()
    params = SamplingParams(n=5, temperature=1.5, seed=3, max_tokens=30, stop_token_ids=list(range(0, 250, 7)))
    (output,) = llm.generate("hello", params)
    assert output.finished and len({len(answer.token_ids) for answer in output.outputs}) > 1
    assert blocks_in_use(llm) == 0


def test_requests_run_in_groups_that_fit_the_pool() -> None:
    llm = tiny_llm(kv_cache_memory_bytes=10 * tiny_block_bytes())
    assert llm.cache.pool.num_blocks == 10
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    prompts = [chr(97 + i) * 30 for i in range(7)]
    expected = [tiny_llm().generate(p, params)[0].outputs[0].token_ids for p in prompts]
    assert [o.outputs[0].token_ids for o in llm.generate(prompts, params)] == expected
    assert blocks_in_use(llm) == 0


def tiny_block_bytes() -> int:
    cache = tiny_llm(max_num_seqs=1).cache
    return cache.bytes // cache.pool.num_blocks


def test_a_request_larger_than_the_pool_is_refused() -> None:
    llm = tiny_llm(kv_cache_memory_bytes=2 * tiny_block_bytes())
    with pytest.raises(ValueError, match="needs 3 KV blocks for 30 prompt tokens and 10 new ones: expected at most 2"):
        llm.generate("x" * 30, SamplingParams(max_tokens=10))
    assert blocks_in_use(llm) == 0


def test_a_stream_that_nobody_finishes_gives_its_blocks_back() -> None:
    llm = tiny_llm()
    stream = llm.stream("hello", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    next(stream)
    assert blocks_in_use(llm) > 0
    between = llm.stream("hello", GREEDY)  # another one, while the first is paused
    text = "".join(delta.text for delta in between)
    assert text == tiny_llm().generate("hello", GREEDY)[0].outputs[0].text
    stream.close()
    assert blocks_in_use(llm) == 0


@pytest.mark.parametrize(("options", "words"), [
    ({"block_size": 0}, "block_size is 0: expected at least 1"),
    ({"kv_cache_dtype": "int3"}, "kv_cache_dtype is 'int3': expected one of auto"),
    ({"prefix_index": "trie"}, "prefix_index is 'trie': expected one of hash, radix"),
    ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes is 0"),
    ({"kv_cache_memory_bytes": 10}, "kv_cache_memory_bytes is 10: expected at least 8192, one block")])
def test_bad_options_are_refused(options, words) -> None:
    with pytest.raises(ValueError, match=words):
        tiny_llm(**options)


def test_n_is_refused_where_it_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="n is 2: expected 1 with temperature 0"):
        SamplingParams(n=2, temperature=0)
    with pytest.raises(ValueError, match="n is 0: expected at least 1"):
        SamplingParams(n=0)
    with pytest.raises(ValueError, match="n is 3: expected 1 to stream"):
        tiny_llm().stream("a", SamplingParams(n=3))
    with pytest.raises(ValueError, match="n is 9: expected at most max_num_seqs"):
        tiny_llm(max_num_seqs=4).generate("a", SamplingParams(n=9))
