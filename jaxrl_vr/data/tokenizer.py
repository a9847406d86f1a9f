"""Tokenizers: text to token ids and back, the same way in training, sampling and scoring.

Completions are never re-tokenised: what is sampled stays ids. So there is `prompt_ids` for a
rendered prompt, with the one BOS that the model expects, and `encode` for what follows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from jaxrl_vr.config import Config, LocalPath
from jaxrl_vr.data.streams import digest
from jaxrl_vr.types import Message

DEFAULT_ALPHABET = (
    "0123456789+-*/=>,.:;()[]{}<?!'\"_#%&@$^|~`\\ \n"
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
# spelled with brackets that an alphabet may not hold, so that no text can spell a special token
CHAR_PAD, CHAR_EOS = "⟨pad⟩", "⟨eos⟩"
FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
# of a folder's files those that must hold a JSON object where they are there
OBJECTS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "config.json",
)
MAX_EOS_IDS = 8  # the sampler compares each token with no more (sampler.scheduler.MAX_STOP_IDS)
# what Qwen2's byte-level decoder, which `transformers` puts in place of ours, takes for one byte
QWEN2_BYTES = frozenset(map(chr, (*range(0xA1, 0xAD), *range(0xAE, 0x144))))


@runtime_checkable
class Tokenizer(Protocol):
    """What the rest of the project asks of a tokenizer."""

    vocab_size: int  # ids are below it
    end_of_turn_id: int  # what a chat puts behind an assistant's turn; one of `eos_ids`
    pad_id: int
    fingerprint: str  # equal fingerprints encode equally

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Each of them ends a completion; the first is the tokenizer's own EOS."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text; nothing is added."""
        ...

    def prompt_ids(self, text: str) -> list[int]:
        """Ids of a rendered prompt: special tokens parsed, one BOS where the model expects it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens skipped."""
        ...

    def chat(self, messages: Sequence[Message], **template_args: Any) -> str:
        """Text of a chat by the tokenizer's own template, ending in the generation prompt."""
        ...

    def save(self, folder: str | Path) -> None:
        """Writes the files from which `transformers` loads the same tokenizer."""
        ...


class CharTokenizer:
    """One id a character: 0 pads, 1 ends, then the alphabet in its order."""

    def __init__(self, alphabet: str) -> None:
        repeated = sorted({c for c in alphabet if alphabet.count(c) > 1})
        if repeated or not alphabet:
            raise ValueError(
                f"tokenizer.alphabet: {repeated or 'nothing'} is "
                f"{'there more than once' if repeated else 'in it'}: list each character once"
            )
        reserved = sorted(set(alphabet) & set("⟨⟩"))
        if reserved:
            raise ValueError(
                f"tokenizer.alphabet: {reserved} spell the special tokens {CHAR_PAD} and "
                f"{CHAR_EOS}: leave them out"
            )
        self.alphabet = alphabet
        self.vocab_size = len(alphabet) + 2
        self.pad_id = 0
        self.eos_ids = (1,)
        self.end_of_turn_id = 1
        self.fingerprint = digest("char", alphabet)
        self._id_of = {character: index + 2 for index, character in enumerate(alphabet)}

    def encode(self, text: str) -> list[int]:
        try:
            return [self._id_of[character] for character in text]
        except KeyError as error:
            raise ValueError(
                f"character {error.args[0]!r} of {text[:60]!r} is not in the alphabet: add it to "
                "tokenizer.alphabet (a trained model cannot learn new characters: keep its own)"
            ) from None

    def prompt_ids(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        # a model may have more rows than characters; one of those reads as U+FFFD
        return "".join(
            self.alphabet[i - 2] if i < self.vocab_size else "\ufffd" for i in ids if i > 1
        )

    def chat(self, messages: Sequence[Message], **template_args: Any) -> str:
        raise ValueError(
            "the char tokenizer has no chat template: use template = {type = 'plain'} for the "
            "source, or a Hugging Face tokenizer"
        )

    def save(self, folder: str | Path) -> None:
        from tokenizers import AddedToken, decoders, models
        from tokenizers import Tokenizer as Backend

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._check_family(folder / "config.json")
        backend = Backend(models.BPE({CHAR_PAD: 0, CHAR_EOS: 1, **self._id_of}, []))
        backend.decoder = decoders.Fuse()
        special = [AddedToken(token, special=True) for token in (CHAR_PAD, CHAR_EOS)]
        backend.add_special_tokens(special)
        # Beside a model of qwen2, transformers 5 keeps of this file only the vocabulary and the
        # added tokens, and cuts the text as Qwen does. Added tokens are found before that.
        backend.add_tokens([AddedToken(c, normalized=False) for c in self.alphabet])
        backend.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": CHAR_PAD,
            "eos_token": CHAR_EOS,
            "unk_token": None,  # that of Qwen would be one id more
            "clean_up_tokenization_spaces": False,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")

    def _check_family(self, config: Path) -> None:
        """Refuses a folder in which `transformers` would decode other characters than ours."""
        broken = sorted(QWEN2_BYTES & set(self.alphabet))
        if broken and config.is_file() and _object(config).get("model_type") == "qwen2":
            raise ValueError(
                f"tokenizer.alphabet: transformers decodes {broken} wrongly beside a model of the "
                "family qwen2: use the family llama or qwen3, or leave them out"
            )


class HFTokenizer:
    """A Hugging Face tokenizer from a local folder or a hub id."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._backend = _auto_tokenizer(str(path))
        own = self._backend.eos_token_id
        self._template = self._read_template()
        self.has_chat_template = bool(self._template)
        turn_end = self._end_of_turn()
        eos_ids = [own, *_generation_eos_ids(str(path)), turn_end]
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(i for i in eos_ids if i is not None))
        if not self.eos_ids:
            raise ValueError(
                f"tokenizer {path}: no end-of-sequence token: set eos_token in its "
                "tokenizer_config.json or eos_token_id in generation_config.json"
            )
        if len(self.eos_ids) > MAX_EOS_IDS:
            raise ValueError(
                f"tokenizer {path}: {len(self.eos_ids)} tokens end a completion, and the sampler "
                f"looks for at most {MAX_EOS_IDS}: shorten eos_token_id in generation_config.json"
            )
        self.end_of_turn_id: int = self.eos_ids[0] if turn_end is None else turn_end
        pad = self._backend.pad_token_id
        self.pad_id: int = self.eos_ids[0] if pad is None else pad
        self.vocab_size: int = len(self._backend)
        self._bos = self._bos_that_is_added()
        self.fingerprint = digest(self._backend.backend_tokenizer.to_str(), self._template)

    def encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{text[error.start]!r} in {text[:60]!r} is half a character: take it out"
            ) from error
        return self._backend.encode(text, add_special_tokens=False)

    def prompt_ids(self, text: str) -> list[int]:
        ids = self.encode(text)
        if self._bos is not None and ids[:1] != [self._bos]:
            ids = [self._bos, *ids]
        if self._bos is not None and ids[1:2] == [self._bos]:
            raise ValueError(
                f"the prompt {text[:60]!r} begins with two BOS tokens: take one out of the "
                "template or the data"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._backend.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def chat(self, messages: Sequence[Message], **template_args: Any) -> str:
        if not self.has_chat_template:
            raise ValueError(
                "this tokenizer has no chat template: use template = {type = 'plain'} or "
                "{type = 'r1_zero'} for the source, or the tokenizer of an instruct model"
            )
        for name in template_args:
            if not re.search(rf"\b{re.escape(name)}\b", self._template):
                raise ValueError(
                    f"template_args.{name}: the tokenizer's chat template does not read it: take "
                    "it out, or see the template for the names it knows"
                )
        return self._render(messages, add_generation_prompt=True, **template_args)

    def save(self, folder: str | Path) -> None:
        self._backend.save_pretrained(str(folder))

    def _render(self, messages: Sequence[Message], **template_args: Any) -> str:
        import jinja2

        turns = [{"role": message.role, "content": message.content} for message in messages]
        # A template is a program: besides jinja's own errors it raises what its operations raise.
        faults = (
            *(jinja2.TemplateError, TypeError, ValueError, ArithmeticError),
            *(LookupError, AttributeError, RecursionError),
        )
        try:
            return self._backend.apply_chat_template(turns, tokenize=False, **template_args)
        except faults as error:
            roles = ", ".join(message.role for message in messages)
            raise ValueError(
                f"the chat template of {self._path} fails on a chat of {roles} "
                f"({type(error).__name__}: {error}): give it what it asks for, or correct it in "
                "chat_template.jinja or tokenizer_config.json"
            ) from error

    def _read_template(self) -> str:
        """The chat template, "" where there is none."""
        if not self._backend.chat_template:
            return ""
        try:
            template = self._backend.get_chat_template()
        except ValueError as error:  # several, and none is the default
            raise ValueError(f"tokenizer {self._path}: {error}") from error
        if not isinstance(template, str):
            raise ValueError(
                f"tokenizer {self._path}: its chat template is a {type(template).__name__}, not "
                "text: correct chat_template in tokenizer_config.json"
            )
        return template

    def _end_of_turn(self) -> int | None:
        # rendered rather than guessed: the first special token behind an assistant's words
        if not self.has_chat_template:
            return None
        words = "zqxj"
        text = self._render([Message("user", "Hi"), Message("assistant", words)])
        behind = self.encode(text.rpartition(words)[2])
        special = set(self._backend.all_special_ids) | set(self._backend.added_tokens_decoder)
        return next((i for i in behind if i in special), None)

    def _bos_that_is_added(self) -> int | None:
        bos = self._backend.bos_token_id
        added = self._backend.encode("", add_special_tokens=True)
        return bos if bos is not None and added[:1] == [bos] else None


def _auto_tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    if Path(path).is_dir():
        if not any((Path(path) / name).is_file() for name in FILES):
            raise ValueError(
                f"tokenizer.path: the folder {path} holds none of {', '.join(FILES)}: name a "
                "folder with a tokenizer, or set tokenizer = {type = 'char'}"
            )
        for name in OBJECTS:
            if (Path(path) / name).is_file():
                _object(Path(path) / name)
        try:
            return AutoTokenizer.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(
                f"tokenizer.path: the tokenizer's files in {path} cannot be used "
                f"({type(error).__name__}: {error}): download or copy them again"
            ) from error
    if Path(path).exists() or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", path):
        raise ValueError(f"tokenizer.path: {path} is not a folder: correct it, or name a hub id")
    try:
        return AutoTokenizer.from_pretrained(path)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"tokenizer.path: {path} is neither a local folder nor a hub id that can be reached "
            f"({reason}): correct it, or download it first and name its folder"
        ) from error


def _generation_eos_ids(path: str) -> list[int]:
    from transformers.utils.hub import cached_file

    file = cached_file(
        path,
        "generation_config.json",
        local_files_only=Path(path).is_dir(),
        _raise_exceptions_for_missing_entries=False,
    )
    if file is None:
        return []
    eos = _object(Path(file)).get("eos_token_id")
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    for i in ids:
        if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < 2**31:
            raise ValueError(f"{file}: eos_token_id holds {str(i)[:60]!r}: write token ids")
    return ids


def _object(file: Path) -> dict[str, Any]:
    """What a JSON file holds, if that is an object."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: is not JSON ({error}): download or copy it again") from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{file}: holds a {type(content).__name__}, not an object: download or copy it again"
        )
    return content


class CharTokenizerConfig(Config):
    """The built-in tokenizer: one id a character."""

    type: Literal["char"] = "char"
    """Which tokenizer this is."""
    alphabet: str = DEFAULT_ALPHABET
    """Characters it knows, each once; fewer make the model's vocabulary smaller."""

    def build(self, model_folder: str | None = None) -> CharTokenizer:
        return CharTokenizer(self.alphabet)


class HFTokenizerConfig(Config):
    """A Hugging Face tokenizer."""

    type: Literal["hf"] = "hf"
    """Which tokenizer this is."""
    path: LocalPath | None = None
    """Local folder or hub id; unset is the model's own folder or id."""

    def build(self, model_folder: str | None = None) -> HFTokenizer:
        path = self.path if self.path is not None else model_folder
        if path is None:
            raise ValueError(
                "tokenizer.path: unset, and the model is not read from a folder: set it to a "
                "tokenizer's folder or hub id"
            )
        return HFTokenizer(path)


TokenizerConfig = CharTokenizerConfig | HFTokenizerConfig
