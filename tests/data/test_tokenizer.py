"""Tokenizers: ids, ends, one BOS, and files that transformers loads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.data.fakes import ByteTokenizer
from jaxrl_vr.data.template import ChatTemplate
from jaxrl_vr.data.tokenizer import (
    DEFAULT_ALPHABET,
    MAX_EOS_IDS,
    OBJECTS,
    QWEN2_BYTES,
    CharTokenizer,
    CharTokenizerConfig,
    HFTokenizer,
    HFTokenizerConfig,
    Tokenizer,
)
from jaxrl_vr.sampler.scheduler import MAX_STOP_IDS
from jaxrl_vr.types import Example, Message

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


CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def beside(folder, family):
    """A folder with the config.json of a model, as an export has before its tokenizer is saved."""
    folder.mkdir()
    content = {"model_type": family, "architectures": [CLASSES[family]]}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("family", CLASSES)
def test_char_tokenizer_exported_with_a_model_of_any_family(tmp_path, family):
    from transformers import AutoTokenizer

    ours = CharTokenizer(DEFAULT_ALPHABET + "漢π")
    ours.save(beside(tmp_path / "a", family))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "a")
    assert (theirs.eos_token_id, theirs.pad_token_id, len(theirs)) == (1, 0, ours.vocab_size)

    @given(st.text(alphabet=ours.alphabet))
    def same(text):
        assert theirs.encode(text) == ours.encode(text)
        assert theirs.decode([*ours.encode(text), 1], skip_special_tokens=True) == text
        assert theirs.decode(ours.encode(text)) == text

    same()
    # what Qwen's own tokenizer would cut, normalise or take for a special token
    for text in ("don't  12345 \n\n ", "<|endoftext|>", "<|im_end|>", "a b", ""):
        assert theirs.encode(text) == ours.encode(text)
    theirs.save_pretrained(tmp_path / "b")
    loaded = HFTokenizer(tmp_path / "b")
    assert loaded.prompt_ids("729 + 304\n=") == ours.prompt_ids("729 + 304\n=")
    assert (loaded.eos_ids, loaded.vocab_size) == (ours.eos_ids, ours.vocab_size)


def test_char_tokenizer_that_qwen2_would_decode_wrongly(tmp_path):
    import tokenizers.pre_tokenizers

    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    assert QWEN2_BYTES == {c for c in letters if not c.isascii()}
    message = r"decodes \['é', 'ł'\] wrongly beside a model of the family qwen2: use"
    with pytest.raises(ValueError, match=message):
        CharTokenizer("abłé漢").save(beside(tmp_path / "a", "qwen2"))
    CharTokenizer("abłé漢").save(beside(tmp_path / "b", "qwen3"))


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


PROGRAMS = {
    "refusal": ("{{ raise_exception('roles must alternate') }}", "TemplateError: roles must"),
    "syntax": ("{% for %}", "TemplateSyntaxError: Expected an expression"),
    "filter": ("{{ messages | nofilter }}", "TemplateAssertionError: No filter named"),
    "undefined": ("{{ x.y.z }}", "UndefinedError: 'x' is undefined"),
    "index": ("{{ messages[9].content }}", "UndefinedError: list object has no element 9"),
    "type": ("{{ 1 + 'a' }}", "TypeError: unsupported operand"),
    "division": ("{{ 1 // 0 }}", "ZeroDivisionError: "),
    "number": ("{{ 'x'.index('y') }}", "ValueError: substring not found"),
    "unsafe": ("{{ ''.__class__.__mro__ }}", "SecurityError: access to attribute"),
    "endless": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError: "),
}


@pytest.mark.parametrize("program, reason", PROGRAMS.values(), ids=PROGRAMS)
def test_hf_template_that_fails(tmp_path, program, reason):
    folder = write_tokenizer(tmp_path / "always", template=program)
    with pytest.raises(ValueError) as caught:
        HFTokenizer(folder)
    said = f"the chat template of {folder} fails on a chat of user, assistant ({reason}"
    assert str(caught.value).startswith(said)
    assert "correct it in chat_template.jinja or tokenizer_config.json" in str(caught.value)
    only_system = "{% if messages[0].role == 'system' %}" + program + "{% endif %}" + TEMPLATE
    if program.startswith("{% for %}") or "nofilter" in program:
        return  # these do not compile, whatever the chat
    tokenizer = HFTokenizer(write_tokenizer(tmp_path / "sometimes", template=only_system))
    with pytest.raises(ValueError) as caught:
        ChatTemplate(system="s").render(Example("7", "q", source="data"), tokenizer)
    said = f"example data:7, template 'chat': the chat template of {tmp_path / 'sometimes'} fails"
    assert str(caught.value).startswith(f"{said} on a chat of system, user ({reason}")


def test_hf_template_argument_of_a_wrong_type(tmp_path):
    program = TEMPLATE + "{% for t in tools or [] %}{{ t.name }}{% endfor %}"
    tokenizer = HFTokenizer(write_tokenizer(tmp_path / "a", template=program))
    chat = [Message("user", "u")]
    assert tokenizer.chat(chat, tools=[{"name": "add"}]).endswith("assistant\nadd")
    with pytest.raises(ValueError, match="fails on a chat of user .TypeError: .*not iterable"):
        tokenizer.chat(chat, tools=3)


def test_hf_template_that_is_no_text(tmp_path):
    with pytest.raises(ValueError, match="a: its chat template is a int, not text: correct"):
        HFTokenizer(write_tokenizer(tmp_path / "a", template=3))
    several = [{"name": "one", "template": "x"}, {"name": "two", "template": "y"}]
    with pytest.raises(ValueError, match="tokenizer .*b: .*no default"):
        HFTokenizer(write_tokenizer(tmp_path / "b", template=several))


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON .*4300 digits"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds a list, not an object"),
        ('"x"', "holds a str, not an object"),
        ("null", "holds a NoneType, not an object"),
    ],
    ids="cut empty digits deep list text null".split(),
)
def test_hf_files_that_hold_no_object(tmp_path, name, content, message):
    folder = write_tokenizer(tmp_path / "a")
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=f"a/{name}: {message}"):
        HFTokenizer(folder)


@pytest.mark.parametrize(
    "name, values, reason",
    [
        ("tokenizer.json", {"added_tokens": None}, "TypeError"),
        ("tokenizer.json", {"added_tokens": [3]}, "AttributeError"),
        ("tokenizer_config.json", {"tokenizer_class": 3}, "AttributeError"),
        ("tokenizer_config.json", {"eos_token": 5}, "TypeError"),
    ],
)
def test_hf_files_with_faulty_values(tmp_path, name, values, reason):
    folder = write_tokenizer(tmp_path / "a")
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | values))
    with pytest.raises(ValueError, match=rf"tokenizer's files in .*a cannot be used \({reason}"):
        HFTokenizer(folder)


@pytest.mark.parametrize("eos", ["</s>", [1, "x"], -1, [2**31], [True], 1.5, [[1]]], ids=str)
def test_generation_config_with_faulty_ends(tmp_path, eos):
    folder = write_tokenizer(tmp_path / "a", generation_eos=eos)
    with pytest.raises(ValueError, match="a/generation_config.json: eos_token_id holds .*write to"):
        HFTokenizer(folder)


def test_more_ends_than_the_sampler_holds(tmp_path):
    assert MAX_EOS_IDS == MAX_STOP_IDS
    # with its own EOS, and the end of a turn
    most = write_tokenizer(tmp_path / "a", generation_eos=list(range(MAX_EOS_IDS - 2)))
    assert len(HFTokenizer(most).eos_ids) == MAX_EOS_IDS
    more = write_tokenizer(tmp_path / "b", generation_eos=list(range(MAX_EOS_IDS - 1)))
    message = "b: 9 tokens end a completion.* at most 8: shorten eos_token_id in generation_config"
    with pytest.raises(ValueError, match=message):
        HFTokenizer(more)


def test_half_a_character_is_refused(hf):
    for encode in (hf.encode, hf.prompt_ids, CharTokenizer("ab").encode):
        with pytest.raises(ValueError, match=r"'\\ud800'"):
            encode("ab\ud800")


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
