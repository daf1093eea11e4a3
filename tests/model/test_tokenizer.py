"""Token ids against three references.

1. llama.cpp: `tokenizer_ids.json` holds the ids that its /tokenize gave for a hard corpus, with SmolLM2's vocabulary
   and each pre-tokenizer that is built here (the file says how it was made).
2. `transformers`, on the same GGUF file. It ignores `tokenizer.ggml.pre` and cuts digits as GPT-2 does, so the two must
   differ on "a  1", and agree wherever no digit follows a space.
3. A tokenizer put together by hand, for hub folders.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from checkpoints import SPECIALS, TOKENS, hub_tokenizer, tokenizer_metadata
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as HubTokenizer

from minillm.model import tokenizer as module
from minillm.model.gguf import read_gguf
from minillm.model.tokenizer import RECIPES, Tokenizer, TokenizerError

RECORDED = json.loads((Path(__file__).parent / "tokenizer_ids.json").read_text(encoding="utf-8"))
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def metadata(smollm2):
    """SmolLM2's GGUF metadata."""
    return read_gguf(smollm2.path).metadata


@pytest.fixture(scope="module")
def smol(metadata):
    """SmolLM2's tokenizer."""
    return Tokenizer.from_gguf(metadata)


def tiny(**changes) -> Tokenizer:
    """The tokenizer of 204 tokens, some metadata changed (None: removed)."""
    renamed = {key.replace("__", "."): value for key, value in changes.items()}
    merged = {**tokenizer_metadata(), **renamed}
    return Tokenizer.from_gguf({key: value for key, value in merged.items() if value is not None})


def write_tokenizer(path: Path, backend: HubTokenizer, config: dict | None = None) -> Path:
    backend.save(str(path / "tokenizer.json"))
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("pre", RECIPES)
def test_same_ids_as_llama_cpp(pre: str, metadata) -> None:
    tokenizer = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.pre": pre})
    recorded = RECORDED["ids"][pre]
    for text, ids in zip(RECORDED["texts"], recorded["texts"], strict=True):
        if pre == "qwen2" and text.startswith("cafe\u0301"):
            continue  # the hub's Qwen2 tokenizer composes Unicode first, llama.cpp does not
        assert tokenizer.encode(text) == ids, text
    for text, ids, as_text in zip(RECORDED["special_texts"], recorded["special_texts"],
                                  recorded["special_texts_as_text"], strict=True):
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.encode(text, specials=False) == as_text, text


def test_the_recorded_ids_tell_the_pre_tokenizers_apart() -> None:
    """All but llama-bpe from qwen2: SmolLM2 has no token of two digits, so groups of three or one come out the same."""
    names = list(RECORDED["ids"])
    assert set(names) == set(RECIPES)
    for i, one in enumerate(names):
        for other in names[i + 1:]:
            same = RECORDED["ids"][one]["texts"] == RECORDED["ids"][other]["texts"]
            assert same == ({one, other} == {"llama-bpe", "qwen2"})


@pytest.mark.parametrize(("pre", "pieces"), [
    ("gpt-2", ["12", "34"]), ("smollm", ["1", "2", "3", "4"]), ("llama-bpe", ["12", "3", "4"]),
    ("qwen2", ["1", "2", "3", "4"]), ("default", ["12", "3", "4"])])
def test_digits_are_cut_as_each_model_was_trained(pre: str, pieces: list[str]) -> None:
    """1234 with the merges 12 and 34: whole, one by one, or in threes from the left."""
    tokens = [*TOKENS, "12", "34"]
    tokenizer = tiny(tokenizer__ggml__pre=pre, tokenizer__ggml__tokens=tokens, tokenizer__ggml__token_type=None,
                     tokenizer__ggml__merges=["1 2", "3 4"], tokenizer__ggml__add_bos_token=False)
    assert [tokens[i] for i in tokenizer.encode("1234")] == pieces


def test_llama3_takes_a_word_that_is_in_the_vocabulary_whole() -> None:
    """`word` is a token that no merge leads to."""
    tokens = [*TOKENS, "word"]
    for pre, count in (("llama-bpe", 1), ("qwen2", 4)):
        tokenizer = tiny(tokenizer__ggml__pre=pre, tokenizer__ggml__tokens=tokens, tokenizer__ggml__token_type=None)
        assert len(tokenizer.encode("word")) == count


def test_same_ids_as_transformers_where_no_digit_follows_a_space(smollm2, smol) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2.path.parent, gguf_file=smollm2.path.name)
    texts = [t for t in (*RECORDED["texts"], *RECORDED["special_texts"]) if not any(c.isnumeric() for c in t)]
    assert len(texts) > 30
    for text in texts:
        assert smol.encode(text) == theirs.encode(text, add_special_tokens=False), text
    assert smol.encode("a  1") != theirs.encode("a  1", add_special_tokens=False)
    assert smol.render_chat(USER) == theirs.apply_chat_template(USER, tokenize=False, add_generation_prompt=True)


def test_qwen2_composes_unicode_first(metadata) -> None:
    tokenizer = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.pre": "qwen2"})
    assert tokenizer.encode("cafe\u0301") == tokenizer.encode("caf\u00e9")


@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=("Cs", "Cc"))))
def test_text_comes_back_whole(smol, text: str) -> None:
    ids = smol.encode(text, specials=False)
    assert smol.decode(ids) == text
    assert b"".join(map(smol.token_bytes, ids)) == text.encode()
    assert all(0 <= i < len(smol) for i in ids)


def test_bytes_without_a_token_are_left_out_as_llama_cpp_does(smol) -> None:
    """The ids are llama.cpp's; byte 0xF1, which begins the first, has no token in SmolLM2."""
    assert smol.encode("\U00040000") == [218, 218, 218]
    assert smol.encode("a\x04b") == smol.encode("a") + smol.encode("b")
    lacking = set(range(256)) - {b for i in range(len(smol)) for b in smol.token_bytes(i)}
    assert len(lacking) == 21


def test_every_token_has_its_bytes(smol) -> None:
    """All 49,152: the bytes, put together and read as UTF-8, are what the library decodes."""
    for i in range(len(smol)):
        assert smol.token_bytes(i).decode("utf-8", "replace") == smol.decode([i], skip_special=False)
    assert {smol.token_bytes(i) for i in range(len(smol))} >= {bytes([b]) for b in range(0x20, 0x7F)}
    emoji = smol.encode("👩‍💻")
    assert len(emoji) > 1
    assert b"".join(map(smol.token_bytes, emoji)) == "👩‍💻".encode()


def test_byte_table_is_one_to_one() -> None:
    table = module.byte_table()
    assert sorted(table.values()) == list(range(256))
    assert table["Ġ"] == 0x20
    assert table["Ċ"] == 0x0A
    assert all(c.isprintable() and not c.isspace() for c in table)


def test_special_tokens_are_known_and_left_out(smol) -> None:
    assert smol.eos_ids == (2,)
    assert smol.bos_id == 1
    assert smol.vocab_size == len(smol) == 49152
    ids = smol.encode("a<|im_end|>b")
    assert ids.count(2) == 1
    assert smol.decode(ids) == "ab"
    assert smol.decode(ids, skip_special=False) == "a<|im_end|>b"
    assert smol.is_special(2)
    assert not smol.is_special(ids[0])
    assert 2 not in smol.encode("a<|im_end|>b", specials=False)
    assert smol.decode(smol.encode("a<|im_end|>b", specials=False)) == "a<|im_end|>b"


def test_chat_template_of_smollm2(smol) -> None:
    assert smol.render_chat(USER) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    chat = [{"role": "system", "content": "S"}, *USER, {"role": "assistant", "content": "yo"}]
    assert smol.render_chat(chat, add_generation_prompt=False) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n")
    ids = smol.encode(smol.render_chat(USER))
    assert ids.count(1) == 3
    assert ids.count(2) == 2


def test_templates_have_what_hub_templates_use() -> None:
    source = ("{{ bos_token }}\n{% for m in messages %}\n    {% if m.role == 'skip' %}{% continue %}{% endif %}\n"
              "{{ m.content | tojson }}\n{% endfor %}\n{{ strftime_now('%Y') }}{{ tools is none }}")
    tokenizer = tiny(tokenizer__chat_template=source)
    messages = [{"role": "user", "content": "é<"}, {"role": "skip", "content": "x"}]
    assert tokenizer.render_chat(messages) == f'<|im_start|>\n"é<"\n{datetime.now().year}True'


@pytest.mark.parametrize(("source", "words"), [
    ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ("{% for m in %}", "refuses"), ("{{ messages[0].content + 1 }}", "refuses"),
    ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
    ("{{ messages.append(1) }}", "unsafe"),
    ("{{ undefined_thing.x }}", "undefined_thing")])
def test_templates_that_fail_or_misbehave_are_one_line(source: str, words: str) -> None:
    with pytest.raises(TokenizerError, match=r"^[^\n]+$") as error:
        tiny(tokenizer__chat_template=source).render_chat(USER)
    assert words in str(error.value)


@pytest.mark.parametrize(("messages", "words"), [
    ([], "messages is empty"), (["hi"], "'hi'"), ([{"content": "x"}], "expected a dict with 'role'"),
    ([{"role": "user"}], "and 'content'")])
def test_messages_that_are_none_are_refused(messages, words: str, smol) -> None:
    with pytest.raises(TokenizerError, match=words):
        smol.render_chat(messages)


def test_a_model_without_chat_template_says_so() -> None:
    with pytest.raises(TokenizerError, match="no chat template"):
        tiny().render_chat(USER)


@pytest.mark.parametrize(("changes", "words"), [
    ({"tokenizer__ggml__model": "llama"}, "tokenizer.ggml.model is 'llama'"),
    ({"tokenizer__ggml__model": None}, "tokenizer.ggml.model is None"),
    ({"tokenizer__ggml__pre": "tekken"}, "tokenizer.ggml.pre is 'tekken': expected one of gpt-2, smollm"),
    ({"tokenizer__ggml__tokens": None}, "no 'tokenizer.ggml.tokens'"),
    ({"tokenizer__ggml__merges": None}, "no 'tokenizer.ggml.merges'"),
    ({"tokenizer__ggml__merges": ["q zz"]}, "merges does not fit"),
    ({"tokenizer__ggml__merges": ["he"]}, "merges"),
    ({"tokenizer__ggml__token_type": [1, 2]}, "token_type has 2 entries: expected 204"),
    ({"tokenizer__ggml__eos_token_id": 204}, "eos_token_id is 204: expected 0 to 203")])
def test_tokenizers_that_cannot_be_built_are_refused_by_name(changes, words: str) -> None:
    with pytest.raises(TokenizerError, match=r"^[^\n]+$") as error:
        tiny(**changes)
    assert words in str(error.value)


def test_input_that_cannot_be_encoded_or_decoded_is_refused(smol) -> None:
    with pytest.raises(TokenizerError, match="text is a int"):
        smol.encode(3)
    for specials in (True, False):
        with pytest.raises(TokenizerError, match="half of a surrogate pair"):
            smol.encode("a\ud800b", specials)
    for call in (lambda: smol.decode([5, -1]), lambda: smol.token_bytes(-1)):
        with pytest.raises(TokenizerError, match="token id is -1: expected 0 to 49151"):
            call()
    assert smol.token_bytes(60_000) == b""  # a padding row of a larger embedding
    assert smol.decode([]) == smol.decode([60_000]) == ""


def test_bos_is_put_in_front_once_when_the_model_wants_it() -> None:
    tokenizer = tiny(tokenizer__ggml__add_bos_token=True)
    plain = tiny()
    he = TOKENS.index("he")
    assert plain.encode("he") == [he]
    assert tokenizer.encode("he") == [1, he]
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("<|im_start|>he") == [1, he]  # a chat template has written it already
    assert tokenizer.encode("he", specials=False) == [he]
    assert tiny(tokenizer__ggml__pre="llama-bpe", tokenizer__ggml__add_bos_token=None).encode("he") == [1, he]


def test_end_of_turn_ends_too() -> None:
    assert tiny(tokenizer__ggml__eot_token_id=0).eos_ids == (2, 0)


def test_user_defined_tokens_are_found_in_text_and_shown() -> None:
    kinds = [3] * 3 + [1] * (len(TOKENS) - 3)
    tokenizer = tiny(tokenizer__ggml__tokens=[*TOKENS, "<tool>"], tokenizer__ggml__token_type=[*kinds, 4])
    assert tokenizer.encode("h<tool>") == [TOKENS.index("h"), 204]
    assert tokenizer.decode([TOKENS.index("h"), 204]) == "h<tool>"
    assert not tokenizer.is_special(204)


def test_a_hub_folder_gives_the_ids_of_the_gguf_file(tmp_path) -> None:
    config = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": "T"}
    folder = Tokenizer.from_folder(write_tokenizer(tmp_path, hub_tokenizer(), config))
    for text in (*RECORDED["texts"], *RECORDED["special_texts"], "he he<|im_end|>"):
        assert folder.encode(text) == tiny().encode(text)
        assert folder.encode(text, specials=False) == tiny().encode(text, specials=False)
    assert (folder.bos_id, folder.eos_ids, len(folder)) == (1, (2,), len(TOKENS))
    assert folder.special == {"bos_token": SPECIALS[1], "eos_token": SPECIALS[2]}
    assert folder.render_chat(USER) == "T"
    (tmp_path / "chat_template.jinja").write_text("J{{ eos_token }}")
    assert Tokenizer.from_folder(tmp_path).render_chat(USER) == "J<|im_end|>"


def test_a_folder_with_several_templates_takes_the_default(tmp_path) -> None:
    several = [{"name": "tool_use", "template": "A"}, {"name": "default", "template": "B"}]
    write_tokenizer(tmp_path, hub_tokenizer(), {"chat_template": several})
    assert Tokenizer.from_folder(tmp_path).render_chat(USER) == "B"


def test_bos_of_a_folder_comes_from_its_post_processor_or_its_config(tmp_path) -> None:
    backend = hub_tokenizer()
    backend.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[(SPECIALS[1], 1)])
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    write_tokenizer(tmp_path, backend, names)
    he = TOKENS.index("he")
    assert Tokenizer.from_folder(tmp_path).encode("he") == [1, he]
    write_tokenizer(tmp_path, backend, {**names, "add_bos_token": False})
    assert Tokenizer.from_folder(tmp_path).encode("he") == [he]
    write_tokenizer(tmp_path, backend, {})
    assert Tokenizer.from_folder(tmp_path).bos_id is None


def test_a_sentencepiece_folder_falls_back_to_bytes(tmp_path) -> None:
    """The Llama 2 and Mistral kind: ▁ for a space, <0xNN> for a byte that has no token."""
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], "▁", "h", "i", "hi", "▁hi"]
    backend = HubTokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [("h", "i"), ("▁", "hi")],
                                      unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                         decoders.Strip(" ", 1, 0)])
    backend.add_tokens([AddedToken(t, special=True, normalized=False) for t in tokens[:3]])
    tokenizer = Tokenizer.from_folder(write_tokenizer(tmp_path, backend, {"bos_token": "<s>", "eos_token": "</s>"}))
    ids = tokenizer.encode("hi é hi</s>")
    assert [tokens[i] for i in ids] == ["▁hi", "▁", "<0xC3>", "<0xA9>", "▁hi", "</s>"]
    assert b"".join(map(tokenizer.token_bytes, ids)) == " hi é hi</s>".encode()
    assert tokenizer.decode(ids) == "hi é hi"


@pytest.mark.parametrize(("files", "words"), [
    ({}, "has no tokenizer.json"), ({"tokenizer.json": "{"}, "is not a tokenizer"),
    ({"tokenizer_config.json": "{"}, "is not JSON"), ({"tokenizer_config.json": "[]"}, "holds a list"),
    ({"tokenizer_config.json": '{"eos_token": "<nope>"}'}, "eos_token is '<nope>'")])
def test_folders_without_a_tokenizer_are_refused(files, words: str, tmp_path) -> None:
    if "tokenizer_config.json" in files:
        write_tokenizer(tmp_path, hub_tokenizer())
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(TokenizerError, match=r"^[^\n]+$") as error:
        Tokenizer.from_folder(tmp_path)
    assert words in str(error.value)


def test_byte_level_is_seen_inside_a_sequence() -> None:
    backend = hub_tokenizer()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.Sequence([decoders.ByteLevel()])
    tokenizer = Tokenizer(backend, {}, (), None, False, None)
    assert tokenizer.token_bytes(TOKENS.index("Ġ") if "Ġ" in TOKENS else TOKENS.index("¡")) == b"\xa1"
