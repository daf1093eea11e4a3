"""Block tables, copy-on-write and both prefix indexes under any history; the known mistakes of each."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from invariants import Memory

from minillm.cache import prefix
from minillm.cache.blocks import BlockPool
from minillm.cache.errors import CacheError, PoolExhausted
from minillm.cache.prefix import HashIndex
from minillm.cache.radix import RadixIndex
from minillm.cache.tables import BlockTables

INDEXES = [None, HashIndex, RadixIndex]
texts = st.lists(st.integers(0, 1), min_size=1, max_size=14)  # two tokens only: common beginnings are everywhere


def new_tables(index=None, blocks: int = 12, size: int = 4) -> BlockTables:
    pool = BlockPool(blocks, size)
    return BlockTables(pool, index and index(pool))


class Histories(RuleBasedStateMachine):
    """Open on a prefix hit, write, fork, cut, close: after each, every slot holds what its sequence wrote."""

    index = None

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(new_tables(self.index))
        self.next = 0

    def pick(self, n: int) -> int:
        return sorted(self.memory.texts)[n % len(self.memory.texts)]

    def write(self, new: dict[int, list[int]]) -> None:
        tables = self.memory.tables
        before = copy.deepcopy((tables.tables, tables.lengths, tables.pool.refs, tables.pool.free, tables.pool.idle))
        try:
            self.memory.write(new)
        except PoolExhausted:
            assert before == (tables.tables, tables.lengths, tables.pool.refs, tables.pool.free, tables.pool.idle)

    @rule(text=texts, extra=st.sampled_from(["", "tenant"]))
    def open(self, text, extra) -> None:
        seq, self.next = self.next, self.next + 1
        hit = self.memory.open(seq, text, extra)
        assert 0 <= hit < len(text)
        self.write({seq: text[hit:]})
        if len(self.memory.texts[seq]) < len(text):
            self.memory.close(seq, register=False)  # it was refused

    @precondition(lambda self: self.memory.texts)
    @rule(n=st.integers(0, 9), text=texts)
    def append(self, n, text) -> None:
        self.write({self.pick(n): text})

    @precondition(lambda self: self.memory.texts)
    @rule(token=st.integers(0, 1))
    def decode_all(self, token) -> None:
        self.write({seq: [token] for seq in self.memory.texts})

    @precondition(lambda self: self.memory.texts)
    @rule(n=st.integers(0, 9))
    def register(self, n) -> None:
        seq = self.pick(n)
        self.memory.tables.register(seq, self.memory.texts[seq])

    @precondition(lambda self: self.memory.texts)
    @rule(n=st.integers(0, 9))
    def fork(self, n) -> None:
        self.memory.fork(self.pick(n), self.next)
        self.next += 1

    @precondition(lambda self: self.memory.texts)
    @rule(n=st.integers(0, 9), keep=st.integers(0, 20))
    def truncate(self, n, keep) -> None:
        seq = self.pick(n)
        self.memory.truncate(seq, min(keep, len(self.memory.texts[seq])))

    @precondition(lambda self: self.memory.texts)
    @rule(n=st.integers(0, 9), register=st.booleans())
    def close(self, n, register) -> None:
        self.memory.close(self.pick(n), register)

    @invariant()
    def everything_is_accounted_for(self) -> None:
        self.memory.check()

    def teardown(self) -> None:
        for seq in list(self.memory.texts):
            self.memory.close(seq)
        pool = self.memory.tables.pool
        assert pool.available == pool.num_blocks
        pool.allocate(pool.num_blocks)  # evicts all there is
        assert not pool.cached
        if self.index is RadixIndex:
            assert not self.memory.tables.index.roots


class HashHistories(Histories):
    index = HashIndex


class RadixHistories(Histories):
    index = RadixIndex


LONG = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWithoutIndex, TestHash, TestRadix = Histories.TestCase, HashHistories.TestCase, RadixHistories.TestCase
TestWithoutIndex.settings = TestHash.settings = TestRadix.settings = LONG


class SoakHash(HashHistories):
    pass


class SoakRadix(RadixHistories):
    pass


TestSoakHash, TestSoakRadix = (pytest.mark.soak(machine.TestCase) for machine in (SoakHash, SoakRadix))
TestSoakHash.settings = TestSoakRadix.settings = settings(max_examples=2000, stateful_step_count=80, deadline=None)


@pytest.mark.parametrize("index", INDEXES)
def test_only_the_writers_of_a_shared_tail_copy_and_the_last_one_has_it(index) -> None:
    memory = Memory(new_tables(index, blocks=6))
    memory.open(0, [1] * 6)
    memory.write({0: [1] * 6})
    for child in (1, 2, 3):
        memory.fork(0, child)
    assert memory.tables.pool.available == 4  # four sequences, two blocks
    assert memory.tables.blocks_needed(dict.fromkeys(range(4), 7)) == 3
    memory.write({seq: [seq] for seq in range(4)})
    memory.check()
    assert memory.tables.pool.available == 1  # one block shared by all, four tails
    assert len({memory.tables.tables[seq][0] for seq in range(4)}) == 1


def test_a_fork_at_a_block_edge_copies_nothing() -> None:
    memory = Memory(new_tables())
    memory.open(0, [1] * 8)
    memory.write({0: [1] * 8})
    memory.fork(0, 1)
    assert memory.tables.reserve({0: 9, 1: 9}) == []
    assert memory.tables.pool.available == 12 - 4


def run(tables: BlockTables, seq: int, text: list[int], extra: str = "", close: bool = True) -> int:
    """A sequence from opening to closing; returns its hit."""
    hit = tables.start(seq, text, extra)
    tables.reserve({seq: len(text)})
    tables.lengths[seq] = len(text)
    tables.register(seq, text)
    if close:
        tables.register(seq, text, closing=True)
        tables.free(seq)
    return hit


@pytest.mark.parametrize("index, hits", [(HashIndex, [0, 8, 8, 8, 4]), (RadixIndex, [0, 9, 8, 9, 6])])
def test_how_much_is_found(index, hits) -> None:
    """Hashes find full blocks, the tree every token; never the last one of a prompt."""
    tables = new_tables(index, blocks=40)
    text = list(range(10))
    seen = [run(tables, seq, prompt) for seq, prompt in enumerate((
        text, text, text[:9], text[:9] + [77] * 9, text[:6] + [88] * 9))]
    assert seen == hits
    assert tables.stats.hit_tokens == sum(hits) and tables.stats.prompt_tokens == 10 + 10 + 9 + 18 + 15
    assert tables.stats.hit_rate == sum(hits) / 62


@pytest.mark.parametrize("index", [HashIndex, RadixIndex])
def test_a_whole_known_prompt_still_computes_its_last_token(index) -> None:
    tables = new_tables(index)
    assert run(tables, 0, [1] * 8) == 0
    assert run(tables, 1, [1] * 8) == (4 if index is HashIndex else 7)


@pytest.mark.parametrize("index", [HashIndex, RadixIndex])
def test_generated_tokens_are_found_in_the_next_turn(index) -> None:
    tables = new_tables(index)
    tables.start(0, [1, 2, 3])
    tables.reserve({0: 9})
    tables.lengths[0] = 9
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]  # the last token was chosen, but never run
    tables.register(0, text, closing=True)
    tables.free(0)
    assert tables.start(1, [*text, 20, 21]) == (8 if index is HashIndex else 9)


@pytest.mark.parametrize("index", [HashIndex, RadixIndex])
def test_other_tenants_and_adapters_find_nothing(index) -> None:
    tables = new_tables(index)
    run(tables, 0, [1] * 9, extra="a")
    assert run(tables, 1, [1] * 9, extra="b") == 0
    assert run(tables, 2, [1] * 9) == 0
    assert run(tables, 3, [1] * 9, extra="a") == 8


@pytest.mark.parametrize("index", [HashIndex, RadixIndex])
def test_what_comes_again_after_preemption_is_counted_apart(index) -> None:
    tables = new_tables(index)
    run(tables, 0, [1] * 9)
    assert tables.start(1, [1] * 9, again=True) == 8
    stats = tables.stats
    assert (stats.prompt_tokens, stats.hit_tokens, stats.again_tokens, stats.again_hit_tokens) == (9, 0, 9, 8)


@pytest.mark.parametrize("index", [HashIndex, RadixIndex])
def test_the_same_text_computed_twice_is_kept_once(index) -> None:
    """Two prompts prefilled in the same step cannot hit each other; afterwards they share."""
    tables = new_tables(index)
    for seq in (0, 1):
        tables.start(seq, [1] * 9)
    tables.reserve({0: 9, 1: 9})
    for seq in (0, 1):
        tables.lengths[seq] = 9
        tables.register(seq, [1] * 9)
    assert tables.tables[0][:2] == tables.tables[1][:2] and tables.tables[0][2] != tables.tables[1][2]
    assert tables.pool.available == 12 - 4


@pytest.mark.parametrize("index", [HashIndex, RadixIndex])
def test_a_running_sequence_does_not_copy_what_it_registered(index) -> None:
    memory = Memory(new_tables(index))
    memory.open(0, [1] * 6)
    memory.write({0: [1] * 6})
    memory.tables.register(0, memory.texts[0])
    assert memory.tables.blocks_needed({0: 8}) == 0


@pytest.mark.parametrize("index", [HashIndex, RadixIndex])
def test_eviction_takes_the_longest_unused_text_from_its_end(index) -> None:
    tables = new_tables(index, blocks=6)
    run(tables, 0, [0] * 9)
    run(tables, 1, [1] * 9)
    assert tables.start(2, [0] * 9) == 8  # the first text is used again
    tables.free(2)
    tables.pool.allocate(tables.pool.available - 3)
    assert tables.index.match([1] * 9)[0] < 8 and tables.index.match([0] * 9)[0] == 8


def test_texts_with_one_hash_do_not_share(monkeypatch) -> None:
    """A hit is compared with what it claims to be: token ids, what came before, and the extra key."""
    monkeypatch.setattr(prefix, "hash_block", lambda parent, token_ids, extra: b"same")
    tables = new_tables(HashIndex)
    run(tables, 0, [1] * 9)
    assert run(tables, 1, [2] * 9) == 0
    assert tables.start(2, [1] * 9, "tenant") == 0
    # every block of the first text has the hash of its first block, but only that one is it
    assert tables.index.match([1] * 9) == (4, tables.index.match([1] * 5)[1])


def test_the_hash_depends_on_everything_it_should() -> None:
    base = prefix.hash_block(b"", [1, 2], "")
    others = [prefix.hash_block(base, [1, 2], ""),
              prefix.hash_block(b"", [1, 3], ""), prefix.hash_block(b"", [2, 1], ""),
              prefix.hash_block(b"", [1, 2], "lora"), prefix.hash_block(b"", [1], ""),
              prefix.hash_block(b"", [1 + 256, 2], ""), prefix.hash_block(b"", [1 + 2**32, 2], "")]
    assert len({base, *others}) == 1 + len(others)
    assert len(base) == 32


def longest_common(texts, prompt) -> int:
    return max((next((i for i, (a, b) in enumerate(zip(t, prompt)) if a != b), min(len(t), len(prompt)))
                for t in texts), default=0)


@settings(max_examples=100, deadline=None)
@given(st.lists(texts, max_size=8), texts, st.sampled_from([1, 2, 4, 5]))
def test_the_tree_finds_the_longest_common_beginning(known, prompt, size) -> None:
    tables = new_tables(RadixIndex, blocks=200, size=size)
    for seq, text in enumerate(known):
        run(tables, seq, text)
    assert tables.index.match(prompt)[0] == min(longest_common(known, prompt), len(prompt) - 1)


@pytest.mark.parametrize("index", [HashIndex, RadixIndex])
def test_metadata_grows_with_what_is_known(index) -> None:
    tables = new_tables(index, blocks=100)
    empty = tables.index.metadata_bytes()
    run(tables, 0, list(range(200)))
    assert tables.index.metadata_bytes() > empty + 200


@pytest.mark.parametrize("call, words", [
    (lambda t: t.start(0, [1]), "sequence 0 has a block table"),
    (lambda t: t.fork(0, 1), "sequence 1 has a block table"),
    (lambda t: t.fork(9, 2), r"sequence 9 is not in the cache: expected one of \[0, 1\]"),
    (lambda t: t.truncate(0, 10), "cut to 10 tokens: expected 0 to 9"),
    (lambda t: t.truncate(0, -1), "cut to -1"),
    (lambda t: t.free(9), "sequence 9 is not in the cache"),
    (lambda t: t.reserve({0: 10, 1: 200}), "sequences \\[0, 1\\] need 48 more blocks: expected at most 7"),
    (lambda t: t.reserve({7: 200}), "need 50 more blocks"),
])
def test_bad_calls_are_refused_and_change_nothing(call, words) -> None:
    tables = new_tables(HashIndex)
    run(tables, 0, [1] * 9, close=False)
    run(tables, 1, [2] * 8, close=False)
    before = copy.deepcopy((tables.tables, tables.lengths, tables.pool.refs, tables.pool.free))
    with pytest.raises(CacheError, match=words):
        call(tables)
    assert before == (tables.tables, tables.lengths, tables.pool.refs, tables.pool.free)


def test_a_finished_sequence_cannot_be_forked_or_freed_again() -> None:
    tables = new_tables()
    run(tables, 0, [1] * 5)
    for call in (lambda: tables.fork(0, 1), lambda: tables.free(0)):
        with pytest.raises(CacheError, match="sequence 0 is not in the cache"):
            call()
    assert tables.pool.available == 12 and not tables.tables


@pytest.mark.parametrize("index", [HashIndex, RadixIndex])
def test_a_block_evicted_before_what_follows_it_takes_that_out_of_the_index(index) -> None:
    """A fork keeps the block that its parent gave up for the index's own, and goes on holding the one behind it."""
    memory = Memory(new_tables(index, blocks=6))
    tables = memory.tables
    for seq, length in ((0, 8), (2, 4)):
        memory.open(seq, [1] * length)
        memory.write({seq: [1] * length})
    memory.fork(0, 1)
    tables.register(2, [1] * 4)
    tables.register(0, [1] * 8)
    assert tables.tables[0][0] == tables.tables[2][0] != tables.tables[1][0]
    assert tables.tables[0][1] == tables.tables[1][1]
    memory.close(0, register=False)
    memory.close(2, register=False)
    tables.pool.allocate(tables.pool.available)  # sequence 1 still holds the second block, not the first
    assert tables.index.match([1] * 9) == (0, [])
    assert tables.tables[1][1] not in tables.pool.cached or index is HashIndex
