"""Text to token ids and back, out of a GGUF file's metadata or a hub folder's tokenizer.json.

The merging itself is done by the `tokenizers` library. What a GGUF file does not carry is the regular expression that
cuts text into words before merging: it carries the expression's name, `tokenizer.ggml.pre`. The expressions below are
those that the models were trained with; a name that is not among them is refused, since a near miss gives other ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HubTokenizer

# GPT-2 (Radford et al. 2019) cuts at contractions, and before a space that begins a word.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Llama 3: any case of contraction, numbers three digits at a time, line ends kept with the punctuation before them.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class _Recipe:
    patterns: tuple[str, ...]  # applied one after the other, each to the pieces of the one before
    nfc: bool = False  # Unicode-compose first
    whole_words: bool = False  # a word that is in the vocabulary is taken without merging
    add_bos: bool = False  # what llama.cpp does when the file has no tokenizer.ggml.add_bos_token


RECIPES = {
    "gpt-2": _Recipe((GPT2,)),
    "smollm": _Recipe((r"\p{N}", GPT2)),
    "llama-bpe": _Recipe((LLAMA3,), whole_words=True, add_bos=True),
    "qwen2": _Recipe((QWEN2,), nfc=True),
    # What llama.cpp does with a file whose converter did not know the model.
    "default": _Recipe((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type


class TokenizerError(ValueError):
    """A tokenizer of a kind that is not built here, or input that it cannot take."""


class Tokenizer:
    """Build it with `from_gguf` or `from_folder`."""

    def __init__(self, backend: HubTokenizer, special: dict[str, str], eos_ids: Sequence[int], bos_id: int | None,
                 add_bos: bool, chat_template: str | None) -> None:
        self.backend = backend
        self.special = special  # bos_token, eos_token, …: what a chat template may print
        self.eos_ids = tuple(dict.fromkeys(eos_ids))
        self.bos_id = bos_id
        self.add_bos = add_bos
        self.chat_template = chat_template
        self._plain: HubTokenizer | None = None
        self._added = {i: token for i, token in backend.get_added_tokens_decoder().items()}
        self._byte_level = "ByteLevel" in str(backend.decoder)

    @classmethod
    def from_gguf(cls, metadata: dict[str, Any]) -> Tokenizer:
        """From a GGUF file's `tokenizer.*` keys. Raises TokenizerError."""
        return _from_gguf(metadata)

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """From a hub folder's tokenizer.json, tokenizer_config.json and chat_template.jinja. Raises TokenizerError."""
        return _from_folder(Path(path))

    def __len__(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def vocab_size(self) -> int:
        """Token ids that have text. A model's vocabulary may be larger, padded to a round number."""
        return len(self)

    def encode(self, text: str, specials: bool = True) -> list[int]:
        """Token ids of `text`.

        With `specials`, a special token written in the text (`<|im_end|>`) becomes its id, and the
        beginning-of-sequence token is put in front when the model wants one and the text does not begin with it.
        Without, special tokens are spelled out like other text and nothing is added: for text that is not trusted.

        A byte that the vocabulary has no token for is left out, as the reference tokenizers do. SmolLM2 lacks 21:
        six control characters, and the lead bytes of unassigned Unicode planes.
        """
        if not isinstance(text, str):
            raise TokenizerError(f"text is a {type(text).__name__}: expected a str")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(f"text holds {text[error.start]!r} at {error.start}, half of a surrogate pair: "
                                 f"expected Unicode text") from None
        if not specials:
            return self._spelled_out().encode(text, add_special_tokens=False).ids
        ids = self.backend.encode(text, add_special_tokens=False).ids
        if self.add_bos and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD. Raises TokenizerError on a negative id."""
        ids = [int(i) for i in ids]
        if ids and min(ids) < 0:
            raise TokenizerError(f"token id is {min(ids)}: expected 0 to {len(self) - 1}")
        return self.backend.decode(ids, skip_special_tokens=skip_special)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for, which may be part of a character.

        Empty for an id beyond `vocab_size`: the padding rows of a model's vocabulary have no text.
        """
        if token_id < 0:
            raise TokenizerError(f"token id is {token_id}: expected 0 to {len(self) - 1}")
        if token_id in self._added:
            return self._added[token_id].content.encode()
        text = self.backend.id_to_token(token_id)
        if text is None:
            return b""
        if self._byte_level:
            table = byte_table()
            return b"".join(bytes([table[c]]) if c in table else c.encode() for c in text)
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):  # byte fallback: <0x0A>
            return bytes([int(text[3:5], 16)])
        return text.replace("▁", " ").encode()

    def is_special(self, token_id: int) -> bool:
        """True for control tokens, which `decode` leaves out by default."""
        return token_id in self._added and self._added[token_id].special

    def render_chat(self, messages: Sequence[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation, by the model's own template. Raises TokenizerError.

        Each message is a dict with "role" and "content". Encode the result with `specials=True`.
        """
        if self.chat_template is None:
            raise TokenizerError("the tokenizer has no chat template: expected that of a chat model")
        if not messages:
            raise TokenizerError("messages is empty: expected at least one message")
        for message in messages:
            if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
                raise TokenizerError(f"message is {message!r}: expected a dict with 'role' and 'content'")
        try:
            return compile_template(self.chat_template).render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, tools=None, documents=None,
                **self.special)
        except (jinja2.TemplateError, TypeError) as error:
            raise TokenizerError(f"the chat template refuses these messages: {error}") from error

    def _spelled_out(self) -> HubTokenizer:
        if self._plain is None:
            self._plain = HubTokenizer.from_str(self.backend.to_str())
            self._plain.encode_special_tokens = True
        return self._plain


@cache
def byte_table() -> dict[str, int]:
    """The 256 printable characters in which a byte-level vocabulary is written, each with its byte (GPT-2).

    Printable bytes stand for themselves; the other 68 are counted off from U+0100.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(rest)}


@cache
def compile_template(source: str) -> jinja2.Template:
    """A chat template as `transformers` runs it, in a sandbox: it is data from a model file."""
    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **options)

    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=["jinja2.ext.loopcontrols"])
    sandbox.filters["tojson"] = tojson
    sandbox.globals["raise_exception"] = raise_exception
    sandbox.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return sandbox.from_string(source)


def _from_gguf(metadata: dict[str, Any]) -> Tokenizer:
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise TokenizerError(f"GGUF tokenizer.ggml.model is {kind!r}: expected 'gpt2' (byte-level BPE)")
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in RECIPES:
        raise TokenizerError(f"GGUF tokenizer.ggml.pre is {name!r}: expected one of {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    tokens = _need_list(metadata, "tokenizer.ggml.tokens")
    merges = _need_list(metadata, "tokenizer.ggml.merges")
    kinds = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise TokenizerError(f"GGUF tokenizer.ggml.token_type has {len(kinds)} entries: expected {len(tokens)}, one a "
                             f"token")
    backend = _byte_level_bpe(tokens, merges, recipe)
    backend.add_tokens([AddedToken(token, special=kind in (CONTROL, UNKNOWN), normalized=False)
                        for token, kind in zip(tokens, kinds) if kind in (CONTROL, UNKNOWN, USER_DEFINED)])
    ids = {role: metadata.get(f"tokenizer.ggml.{role}_token_id") for role in
           ("bos", "eos", "eot", "eom", "unknown", "padding")}
    for role, token_id in ids.items():
        if token_id is not None and not 0 <= token_id < len(tokens):
            raise TokenizerError(f"GGUF tokenizer.ggml.{role}_token_id is {token_id}: expected 0 to {len(tokens) - 1}")
    printed = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {key: tokens[ids[role]] for key, role in printed.items() if ids[role] is not None}
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", recipe.add_bos)) and ids["bos"] is not None
    return Tokenizer(backend, special, [ids[r] for r in ("eos", "eot", "eom") if ids[r] is not None], ids["bos"],
                     add_bos, metadata.get("tokenizer.chat_template"))


def _need_list(metadata: dict[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value:
        raise TokenizerError(f"GGUF metadata has no {key!r}: expected a list of strings")
    return value


def _byte_level_bpe(tokens: list[str], merges: list[str], recipe: _Recipe) -> HubTokenizer:
    pairs = [tuple(merge.split(" ")) for merge in merges]
    bad = next((merge for merge, pair in zip(merges, pairs) if len(pair) != 2), None)
    if bad is not None:
        raise TokenizerError(f"GGUF tokenizer.ggml.merges holds {bad!r}: expected two tokens and a space between")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        backend = HubTokenizer(models.BPE(vocabulary, pairs, ignore_merges=recipe.whole_words))
    except Exception as error:  # the library raises plain Exception: a merge of tokens that are not in the vocabulary
        raise TokenizerError(f"GGUF tokenizer.ggml.merges does not fit its tokens: {error}") from None
    if recipe.nfc:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in recipe.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    return backend


def _from_folder(path: Path) -> Tokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(f"{path} has no tokenizer.json: expected the hub's fast tokenizer")
    try:
        backend = HubTokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"{file} is not a tokenizer: {error}") from None
    backend.no_padding()
    backend.no_truncation()
    config = _read_json(path / "tokenizer_config.json")
    special = {key: _content(value) for key, value in config.items()
               if key in ("bos_token", "eos_token", "unk_token", "pad_token") and value is not None}
    for key, token in special.items():
        if backend.token_to_id(token) is None and key in ("bos_token", "eos_token"):
            raise TokenizerError(f"{path / 'tokenizer_config.json'} {key} is {token!r}: expected a token of "
                                 f"tokenizer.json")
    bos, eos = (backend.token_to_id(special[k]) if k in special else None for k in ("bos_token", "eos_token"))
    # tokenizer.json says what is put in front in its post-processor: ask it about the empty text.
    add_bos = config.get("add_bos_token")
    if add_bos is None:
        add_bos = bos in backend.encode("", add_special_tokens=True).ids
    return Tokenizer(backend, special, [] if eos is None else [eos], bos, bool(add_bos) and bos is not None,
                     _chat_template(path, config))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise TokenizerError(f"{path} holds a {type(data).__name__}: expected an object")
    return data


def _content(value: Any) -> str:
    return value["content"] if isinstance(value, dict) else str(value)


def _chat_template(path: Path, config: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template
