"""Telling languages apart: by script, by words and spelling; always the same."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_vr.verifiers.language_words import ARABIC, CYRILLIC, DEVANAGARI, LATIN, LETTERS
from jaxrl_vr.verifiers.languages import LANGUAGES, canonical, detect, runs

SENTENCES = [
    ("en", "Dear hiring manager, please find attached my resume."),
    ("en", "Photosynthesis converts sunlight into chemical energy."),
    ("en", "Blue whales remain enormous ocean mammals."),
    ("en", "IBM released new laptops yesterday"),
    ("en", "Roses are red, violets are blue."),
    ("en", "Paris is the capital of France."),
    ("de", "Die Bundesregierung beschließt neue Maßnahmen gegen Inflation."),
    ("de", "Wir fahren morgen früh mit dem Zug nach Hamburg."),
    ("de", "Kinder spielen gern draußen im Garten."),
    ("de", "Mein Lieblingsessen ist Kartoffelsalat mit Würstchen."),
    ("fr", "Les enfants jouent dans le jardin derrière la maison."),
    ("fr", "Paris est la capitale de la France."),
    ("fr", "Elle travaille depuis cinq ans chez un boulanger."),
    ("fr", "Voici quelques conseils utiles pour voyager."),
    ("es", "Los niños juegan en el jardín detrás de la casa."),
    ("es", "Madrid es la capital de España."),
    ("es", "Necesito comprar pan y leche mañana."),
    ("es", "Aquí tienes algunos consejos útiles para viajar."),
    ("it", "I bambini giocano nel giardino dietro casa."),
    ("it", "Roma è la capitale d'Italia."),
    ("it", "Devo comprare pane e latte domani."),
    ("it", "Ecco alcuni consigli utili per viaggiare."),
    ("pt", "As crianças brincam no jardim atrás da casa."),
    ("pt", "Lisboa é a capital de Portugal."),
    ("pt", "Preciso comprar pão e leite amanhã."),
    ("pt", "Aqui estão algumas dicas úteis para viajar."),
    ("nl", "De kinderen spelen in de tuin achter het huis."),
    ("nl", "Amsterdam is de hoofdstad van Nederland."),
    ("nl", "Ik moet morgen brood kopen."),
    ("sv", "Barnen leker i trädgården bakom huset."),
    ("sv", "Stockholm är Sveriges huvudstad."),
    ("sv", "Jag måste köpa bröd imorgon."),
    ("fi", "Lapset leikkivät puutarhassa talon takana."),
    ("fi", "Helsinki on Suomen pääkaupunki."),
    ("fi", "Minun täytyy ostaa leipää huomenna."),
    ("pl", "Dzieci bawią się w ogrodzie za domem."),
    ("pl", "Warszawa jest stolicą Polski."),
    ("pl", "Muszę jutro kupić chleb i mleko."),
    ("cs", "Děti si hrají na zahradě za domem."),
    ("cs", "Praha je hlavní město České republiky."),
    ("hu", "A gyerekek a ház mögötti kertben játszanak."),
    ("hu", "Budapest Magyarország fővárosa."),
    ("ro", "Copiii se joacă în grădina din spatele casei."),
    ("ro", "București este capitala României."),
    ("tr", "Çocuklar evin arkasındaki bahçede oynuyor."),
    ("tr", "Ankara Türkiye'nin başkentidir."),
    ("tr", "Yarın ekmek ve süt almam gerekiyor."),
    ("vi", "Trẻ em chơi trong vườn sau nhà."),
    ("vi", "Hà Nội là thủ đô của Việt Nam."),
    ("id", "Anak-anak bermain di taman belakang rumah."),
    ("id", "Jakarta adalah ibu kota Indonesia."),
    ("sw", "Watoto wanacheza kwenye bustani nyuma ya nyumba."),
    ("sw", "Dodoma ni mji mkuu wa Tanzania."),
    ("ru", "Дети играют в саду за домом."),
    ("ru", "Москва — столица России."),
    ("ru", "Мне нужно купить хлеб и молоко завтра."),
    ("uk", "Діти граються в саду за будинком."),
    ("uk", "Київ — столиця України."),
    ("uk", "Мені потрібно купити хліб завтра."),
    ("bg", "София е столицата на България."),
    ("ar", "الأطفال يلعبون في الحديقة خلف المنزل."),
    ("ar", "القاهرة عاصمة مصر."),
    ("fa", "بچه‌ها در باغ پشت خانه بازی می‌کنند."),
    ("fa", "تهران پایتخت ایران است."),
    ("ur", "بچے گھر کے پیچھے باغ میں کھیل رہے ہیں۔"),
    ("ur", "اسلام آباد پاکستان کا دارالحکومت ہے۔"),
    ("hi", "बच्चे घर के पीछे बगीचे में खेल रहे हैं।"),
    ("hi", "दिल्ली भारत की राजधानी है।"),
    ("hi", "मुझे कल रोटी खरीदनी है।"),
    ("mr", "मुले घरामागील बागेत खेळत आहेत."),
    ("mr", "मुंबई महाराष्ट्राची राजधानी आहे."),
    ("mr", "मला उद्या भाकरी विकत घ्यायची आहे."),
    ("ne", "केटाकेटीहरू घरपछाडिको बगैंचामा खेलिरहेका छन्।"),
    ("ne", "काठमाडौं नेपालको राजधानी हो।"),
    ("ko", "아이들이 정원에서 놀고 있다."),
    ("ja", "子供たちは庭で遊んでいます。"),
    ("ja", "東京は日本の首都です。"),
    ("zh", "孩子们在花园里玩耍。"),
    ("bn", "এটি একটি সহজ বাংলা বাক্য।"),
    ("ta", "இது ஒரு எளிய தமிழ் வாக்கியம்."),
    ("te", "ఇది ఒక సాధారణ తెలుగు వాక్యం."),
    ("kn", "ಇದು ಸರಳ ಕನ್ನಡ ವಾಕ್ಯ."),
    ("ml", "ഇത് ഒരു ലളിതമായ മലയാളം വാക്യമാണ്."),
    ("gu", "આ એક સરળ ગુજરાતી વાક્ય છે."),
    ("pa", "ਇਹ ਇੱਕ ਸਧਾਰਨ ਪੰਜਾਬੀ ਵਾਕ ਹੈ।"),
    ("th", "นี่คือประโยคภาษาไทยง่ายๆ"),
    ("el", "Αυτή είναι μια απλή ελληνική πρόταση."),
    ("he", "זה משפט פשוט בעברית."),
    ("da", "Dette er en enkel dansk sætning med flere ord."),
    ("no", "Dette er en enkel norsk setning med flere ord."),
    ("bg", "Това е просто българско изречение с няколко думи."),
]


@pytest.mark.parametrize(("code", "sentence"), SENTENCES)
def test_sentences(code, sentence):
    assert detect(sentence) == code
    assert detect(unicodedata.normalize("NFD", sentence)) == code


@pytest.mark.parametrize("code", ["en", "de", "fr", "es", "it", "pt", "pl", "ru", "uk", "tr"])
def test_capital_letters_change_nothing(code):
    for language, sentence in SENTENCES:
        if language == code:
            assert detect(sentence.upper()) == code


def test_most_letters_decide():
    assert detect("Hello 你好，今天的天气非常好，我们去公园。") == "zh"
    assert detect("This long English sentence names 北京 once.") == "en"
    assert detect("東京大学") == "zh"  # without kana, Han characters are Chinese
    assert detect("東京大学です") == "ja"


@pytest.mark.parametrize("text", ["", " ", "123 + 4 = 127", "!?", "\x00\ud800", "\u202e"])
def test_without_letters_there_is_none(text):
    assert detect(text) is None


def test_codes():
    for code in ("zh-cn", "zh-TW", "zh_Hans", "ZH"):
        assert canonical(code) == "zh"
    assert canonical("nb") == "no" and canonical(" DE ") == "de"
    # those of IFEval's list
    of_ifeval = "en es pt ar hi fr ru de ja it bn uk th ur ta te bg ko pl he fa vi ne sw kn mr gu"
    assert set((of_ifeval + " pa ml fi").split()) <= set(LANGUAGES)


@pytest.mark.parametrize("table", [LATIN, CYRILLIC, ARABIC, DEVANAGARI])
def test_words_are_spelt_with_the_letters_of_their_language(table):
    for code, words in table.items():
        assert len(set(words.split())) >= 30
        if table is not DEVANAGARI:
            letters = set("abcdefghijklmnopqrstuvwxyz" if table is LATIN else "") | set(
                LETTERS.get(code, "")
            )
            assert set(words) - letters - {" "} == set(), code


def test_runs_are_words_of_one_script():
    assert list(runs("a1б 日本z")) == [
        ("latin", "a", 0),
        ("cyrillic", "б", 2),
        ("han", "日本", 4),
        ("latin", "z", 6),
    ]


@settings(max_examples=200, derandomize=True)
@given(st.text(max_size=60))
def test_any_text_has_a_language_or_none(text):
    assert detect(text) in {*LANGUAGES, None}
    assert detect(text) == detect(text)
