"""Text to token ids and back, from a folder's tokenizer.json or from GGUF metadata; and chats as token ids.

Everything the engine needs of a tokenizer is its tokenizer.json: the same bytes go to the grammar compiler and, over
HTTP, to whoever cuts documents into chunks of so many tokens.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from inference.chat_template import ChatTemplate, TemplateError, pick_template
from inference.gguf_file import open_gguf
from inference.gguf_tokenizer import UnknownSplit, byte_level_bpe, sentencepiece_bpe
from inference.token_bytes import TokenBytes

# Tokens that end a turn in the chat formats of the families the engine runs, whatever the metadata names as its one
# end of sequence.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<end_of_turn>")


class TokenizerError(ValueError):
    """The tokenizer cannot be read or is of an unknown kind. The message names the file and what was found."""


@dataclass(frozen=True)
class Tokenizer:
    """`json` is the tokenizer.json that `backend` was read from; `vocab_size` counts added tokens too."""

    backend: Backend
    json: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    bos_token: str = ""
    eos_token: str = ""
    add_bos: bool = False

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens written in it are read as such only with `special`; with it, a sequence
        start is put in front where the model wants one."""
        backend = self.backend if special else self._literal
        ids = backend.encode(text, add_special_tokens=False).ids
        if special and self.add_bos and self.bos_token:
            start = self.backend.token_to_id(self.bos_token)
            if start is not None and ids[:1] != [start]:
                ids = [start, *ids]
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=skip_special)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The prompt text for `messages` (role, content). Raises TemplateError."""
        if self.chat_template is None:
            raise TemplateError("this model has no chat template; use /v1/completions with a prompt of your own")
        return self._template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            bos_token=self.bos_token,
            eos_token=self.eos_token,
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of the rendered chat. A special token spelled out in a message is read as plain characters, so that
        a page cannot end its own turn. Raises TemplateError."""
        contents = [str(message.get("content") or "") for message in messages]
        if not any(token in content for content in contents for token in self._special):
            return self.encode(self.render_chat(messages))
        # Render with a mark in place of each content, then put the contents in as plain text.
        mark = f"\ue000{secrets.token_hex(8)}\ue001"
        rendered = self.render_chat([{**message, "content": f"{mark}{i}{mark}"} for i, message in enumerate(messages)])
        pieces = rendered.split(mark)
        ids = self.encode(pieces[0])
        for i in range(1, len(pieces) - 1, 2):
            ids += self.encode(contents[int(pieces[i])], special=False)
            ids += self.backend.encode(pieces[i + 1], add_special_tokens=False).ids
        return ids

    def vocabulary(self) -> dict[str, int]:
        """Every token's text, as the tokenizer spells it, and its id."""
        return self.backend.get_vocab(with_added_tokens=True)

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """What each token spells."""
        return TokenBytes(self.backend, self.json)

    @cached_property
    def _special(self) -> tuple[str, ...]:
        return tuple(token.content for token in self.backend.get_added_tokens_decoder().values() if token.special)

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self.chat_template or "")

    @cached_property
    def _literal(self) -> Backend:
        """The tokenizer without special tokens: `<|im_end|>` in a page is ten characters, not the end of a turn."""
        plain = json.loads(self.json)
        plain["added_tokens"] = [token for token in plain["added_tokens"] if not token["special"]]
        plain["post_processor"] = None
        return Backend.from_str(json.dumps(plain))


def load_tokenizer(path: Path) -> Tokenizer:
    """Read the tokenizer of a checkpoint: a folder with tokenizer.json or with one .gguf file, or a .gguf file.

    A tokenizer.json saved beside a .gguf file is taken instead of the metadata.
    Raises TokenizerError.
    """
    if path.is_dir():
        found = list(path.glob("*.gguf"))
        if (path / "tokenizer.json").exists() or not found:
            return _from_folder(path)
        if len(found) != 1:
            raise TokenizerError(f"{path}: {len(found)} .gguf files in this folder; name one of them")
        path = found[0]
    if not path.exists():
        raise TokenizerError(f"{path}: no such file")
    if len(list(path.parent.glob("*.gguf"))) == 1 and (path.parent / "tokenizer.json").exists():
        return _from_folder(path.parent)
    return _from_gguf(path)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, as `load_tokenizer` and transformers read them."""
    (folder / "tokenizer.json").write_text(tokenizer.json, encoding="utf-8")
    settings = {
        "bos_token": tokenizer.bos_token or None,
        "eos_token": tokenizer.eos_token or None,
        "add_bos_token": tokenizer.add_bos,
        "chat_template": tokenizer.chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, ensure_ascii=False, indent=1), encoding="utf-8")


def _from_folder(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.exists():
        raise TokenizerError(f"{folder}: no tokenizer.json; save the model with its fast tokenizer")
    text = file.read_text(encoding="utf-8")
    backend = Backend.from_str(text)
    settings = _json(folder / "tokenizer_config.json")
    generation, config = _json(folder / "generation_config.json"), _json(folder / "config.json")
    bos, eos = _word(settings.get("bos_token")), _word(settings.get("eos_token"))
    named = [generation.get("eos_token_id"), config.get("eos_token_id"), backend.token_to_id(eos) if eos else None]
    template = folder / "chat_template.jinja"
    return Tokenizer(
        backend=backend,
        json=text,
        vocab_size=backend.get_vocab_size(with_added_tokens=True),
        eos_token_ids=_end_tokens(backend, named),
        chat_template=template.read_text(encoding="utf-8")
        if template.exists()
        else pick_template(settings.get("chat_template")),
        bos_token=bos,
        eos_token=eos,
        add_bos=bool(settings.get("add_bos_token", _starts_with(backend, bos))),
    )


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _word(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token or "")


def _starts_with(backend: Backend, token: str) -> bool:
    """Whether tokenizer.json itself puts `token` in front of a text, as Llama 3's does."""
    return bool(token) and backend.encode("", add_special_tokens=True).ids[:1] == [backend.token_to_id(token)]


def _end_tokens(backend: Backend, named: Sequence[Any]) -> tuple[int, ...]:
    ids: list[int] = []
    for value in (*named, *map(backend.token_to_id, _TURN_ENDS)):
        for token in value if isinstance(value, list) else [value]:
            if token is not None and int(token) not in ids:
                ids.append(int(token))
    return tuple(ids)


def _from_gguf(path: Path) -> Tokenizer:
    fields = open_gguf(path).fields

    def get(key: str, default: Any = None) -> Any:
        field = fields.get(f"tokenizer.{key}")
        return default if field is None else field.contents()

    kind, tokens = get("ggml.model"), get("ggml.tokens", [])
    types = get("ggml.token_type", [1] * len(tokens))
    if kind == "gpt2":
        try:
            backend = byte_level_bpe(tokens, get("ggml.merges"), types, get("ggml.pre", "gpt2"))
        except UnknownSplit as error:
            raise TokenizerError(f"{path}: {error}") from error
    elif kind == "llama":
        in_front = bool(get("ggml.add_space_prefix", True))
        backend = sentencepiece_bpe(tokens, get("ggml.scores"), types, space_in_front=in_front)
    else:
        raise TokenizerError(
            f"{path}: tokenizer {kind!r} is not known from GGUF; known are gpt2 (byte-level BPE) and llama "
            "(SentencePiece BPE); put a tokenizer.json beside the file"
        )

    def name(key: str) -> str:
        index = get(key)
        return "" if index is None else tokens[int(index)]

    return Tokenizer(
        backend=backend,
        json=backend.to_str(),
        vocab_size=len(tokens),
        eos_token_ids=_end_tokens(backend, [get(f"ggml.{name}_token_id") for name in ("eos", "eot", "eom")]),
        chat_template=get("chat_template"),
        bos_token=name("ggml.bos_token_id"),
        eos_token=name("ggml.eos_token_id"),
        add_bos=bool(get("ggml.add_bos_token", kind == "llama")),
    )
