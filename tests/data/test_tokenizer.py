"""Tokenizers: ids, ends, one BOS, and files that transformers loads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.data.fakes import ByteTokenizer
from jaxrl_vr.data.tokenizer import (
    DEFAULT_ALPHABET,
    CharTokenizer,
    CharTokenizerConfig,
    HFTokenizer,
    HFTokenizerConfig,
    Tokenizer,
)
from jaxrl_vr.types import Message

TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n"
    "{% if not enable_thinking|default(true) %}<think></think>{% endif %}{% endif %}"
)


def write_tokenizer(folder, *, template=TEMPLATE, bos=False, generation_eos=None, **config):
    """A small byte-level tokenizer's files, as a model's folder has them."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
    from tokenizers import Tokenizer as Backend

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)}
    vocab |= {"he": 256, "ll": 257}
    backend = Backend(models.BPE(vocab, [("h", "e"), ("l", "l")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|bos|>", "<|eos|>", "<|turn|>", "<|end|>"]  # ids 258 to 261
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", 258)]
        )
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|eos|>"}
    settings |= {"bos_token": "<|bos|>"} | config
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if generation_eos is not None:
        text = json.dumps({"eos_token_id": generation_eos})
        (folder / "generation_config.json").write_text(text)
    return folder


@pytest.fixture(scope="module")
def hf(tmp_path_factory):
    return HFTokenizer(write_tokenizer(tmp_path_factory.mktemp("hf")))


def test_char_ids():
    tokenizer = CharTokenizer("ab+")
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.encode("a+b") == [2, 4, 3]
    assert tokenizer.prompt_ids("a+b") == [2, 4, 3]
    assert tokenizer.decode([2, 4, 0, 3, 1, 99]) == "a+b\ufffd"
    assert (tokenizer.vocab_size, tokenizer.pad_id, tokenizer.eos_ids) == (5, 0, (1,))


@given(st.text(alphabet=DEFAULT_ALPHABET))
def test_char_round_trip(text):
    tokenizer = CharTokenizerConfig().build()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_char_errors():
    with pytest.raises(ValueError, match="character 'c' of 'abc' is not in the alphabet"):
        CharTokenizer("ab").encode("abc")
    with pytest.raises(ValueError, match=r"\['a'\] is there more than once"):
        CharTokenizer("aba")
    with pytest.raises(ValueError, match="nothing is in it"):
        CharTokenizer("")
    with pytest.raises(ValueError, match="spell the special tokens"):
        CharTokenizer("a⟨")
    with pytest.raises(ValueError, match="char tokenizer has no chat template"):
        CharTokenizer("ab").chat([Message("user", "a")])


def test_fingerprints_tell_tokenizers_apart(hf, tmp_path):
    other = HFTokenizer(write_tokenizer(tmp_path / "other", template=TEMPLATE + " "))
    again = HFTokenizer(write_tokenizer(tmp_path / "again"))
    assert again.fingerprint == hf.fingerprint
    prints = {CharTokenizer("ab").fingerprint, CharTokenizer("ba").fingerprint, "bytes"}
    assert len(prints | {hf.fingerprint, other.fingerprint}) == 5


def test_exported_char_tokenizer_is_the_same_in_transformers(tmp_path):
    from transformers import AutoTokenizer

    ours = CharTokenizer(DEFAULT_ALPHABET + "é漢")
    ours.save(tmp_path / "export")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "export")
    assert (theirs.eos_token_id, theirs.pad_token_id, len(theirs)) == (1, 0, ours.vocab_size)

    @given(st.text(alphabet=ours.alphabet))
    def same(text):
        assert theirs.encode(text) == ours.encode(text)
        assert theirs.decode([*ours.encode(text), 1], skip_special_tokens=True) == text

    same()
    assert theirs.encode("<pad><eos> [PAD] </s>") == ours.encode("<pad><eos> [PAD] </s>")
    loaded = HFTokenizer(tmp_path / "export")
    assert (loaded.eos_ids, loaded.pad_id) == ((1,), 0)
    assert loaded.prompt_ids("729+304=") == ours.prompt_ids("729+304=")


def test_bytes():
    tokenizer = ByteTokenizer()
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.encode("é") == [0xC3, 0xA9]
    assert tokenizer.decode([0xC3, 0xA9, 256, 257, 0xC3]) == "é\ufffd"
    assert tokenizer.chat([Message("user", "hi")]) == "user: hi\nassistant: "


def test_hf_encodes_and_decodes(hf):
    assert isinstance(hf, Tokenizer)
    assert hf.vocab_size == 262
    h, o = hf.encode("h")[0], hf.encode("o")[0]
    assert hf.encode("hello") == [256, 257, o]
    assert hf.encode("<|turn|>h<|end|>") == [260, h, 261]
    assert hf.decode([260, 256, 257, o, 261, 259]) == "hello"
    assert hf.decode(hf.encode("a , b  .\n é")) == "a , b  .\n é"


def test_hf_ends_are_a_set(tmp_path):
    plain = HFTokenizer(write_tokenizer(tmp_path / "a", template=None))
    assert (plain.eos_ids, plain.end_of_turn_id, plain.pad_id) == ((259,), 259, 259)
    chat = HFTokenizer(write_tokenizer(tmp_path / "b", pad_token="<|turn|>"))
    # the end of turn is read off the rendered template
    assert (chat.eos_ids, chat.end_of_turn_id, chat.pad_id) == ((259, 261), 261, 260)
    several = HFTokenizer(write_tokenizer(tmp_path / "c", generation_eos=[258, 259]))
    assert several.eos_ids == (259, 258, 261)
    one = HFTokenizer(write_tokenizer(tmp_path / "d", template=None, generation_eos=261))
    assert one.eos_ids == (259, 261)


def test_hf_chat_ends_in_the_generation_prompt(hf):
    chat = [Message("system", "s"), Message("user", "u")]
    text = "<|turn|>system\ns<|end|>\n<|turn|>user\nu<|end|>\n<|turn|>assistant\n"
    assert hf.chat(chat) == text
    assert hf.chat(chat, enable_thinking=False) == text + "<think></think>"
    with pytest.raises(ValueError, match="template_args.enable_thinkin: .*does not read it"):
        hf.chat(chat, enable_thinkin=False)


def test_hf_bos_is_single(tmp_path):
    tokenizer = HFTokenizer(write_tokenizer(tmp_path / "a", bos=True))
    h = tokenizer.encode("h")[0]
    assert tokenizer.encode("h") == [h]
    assert tokenizer.prompt_ids("h") == [258, h]
    assert tokenizer.prompt_ids("<|bos|>h") == [258, h]
    with pytest.raises(ValueError, match="begins with two BOS tokens"):
        tokenizer.prompt_ids("<|bos|><|bos|>h")
    without = HFTokenizer(write_tokenizer(tmp_path / "b"))
    assert without.prompt_ids("h") == [h]


def test_hf_save_and_load(hf, tmp_path):
    hf.save(tmp_path / "export")
    loaded = HFTokenizer(tmp_path / "export")
    chat = [Message("user", "hello")]
    assert loaded.prompt_ids(loaded.chat(chat)) == hf.prompt_ids(hf.chat(chat))
    assert loaded.eos_ids == hf.eos_ids


def test_hf_config(tmp_path, hf):
    folder = str(write_tokenizer(tmp_path / "model"))
    assert HFTokenizerConfig().build(folder).fingerprint == hf.fingerprint
    assert HFTokenizerConfig(path=folder).build("elsewhere").fingerprint == hf.fingerprint
    with pytest.raises(ValueError, match="tokenizer.path: unset"):
        HFTokenizerConfig().build(None)


def test_hf_bad_paths(tmp_path):
    with pytest.raises(ValueError, match="holds none of tokenizer.json"):
        HFTokenizer(tmp_path)
    with pytest.raises(ValueError, match="no/such/folder is not a folder"):
        HFTokenizer("no/such/folder")
    with pytest.raises(ValueError, match="is not a folder"):
        HFTokenizer(tmp_path / "missing")


def test_hf_without_a_chat_template(tmp_path):
    tokenizer = HFTokenizer(write_tokenizer(tmp_path / "a", template=None))
    with pytest.raises(ValueError, match="no chat template: use template = {type = 'plain'}"):
        tokenizer.chat([Message("user", "u")])


def test_hf_without_an_end(tmp_path):
    folder = write_tokenizer(tmp_path / "a", template=None, eos_token=None)
    with pytest.raises(ValueError, match="no end-of-sequence token: set eos_token"):
        HFTokenizer(folder)
