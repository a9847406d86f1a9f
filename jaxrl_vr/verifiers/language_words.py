"""Frequent words and letters of languages that share a script, for `languages` to tell them apart.

The words are the small ones that any text has: articles, pronouns, prepositions, auxiliaries, a few
verbs and nouns of daily use. Letters are those beyond the plain ones of the script.
"""

from __future__ import annotations

LATIN = {
    "af": "die en van in is dit wat nie het hy sy ek ons hulle jy vir met op aan om te sal kan "
    "was wees maar as ook na by uit deur oor hierdie daardie baie goed so n se my jou haar moet "
    "word",
    "ca": "el la els les un una i de del dels al als en amb per que és són no ha he hi ho es "
    "més però com quan també molt tot aquest aquesta aquests jo tu ell ella nosaltres meu bon "
    "dia gràcies està ser fer tenir hola casa anys altres on qui què",
    "cs": "a je se v na že to s z do o k i jsem jsi jsme jste jsou byl byla bylo být ale jako "
    "jak tak pro po od za co kdo který která které ten ta tento tato ve ze si by už jen také "
    "když nebo my ty on ona oni můj dobrý den děkuji velmi není mají má může ještě než při před "
    "kočka pes spí věta slovo slov jíst pít běžet práce dítě čas život země voda město žena "
    "přítel škola kniha cesta jednoduchý česká jde přijít dělat šel vidět psát mezi proti vždy "
    "nikdy každý jiný první poslední velký malý několik jablka gauči",
    "cy": "y yr a ac yn ar i o mae ei eu fod ond am gan wedi oedd ydy yw hi fe dw dych nhw ni "
    "chi ti bod bydd hefyd neu pan sydd roedd da iawn bore diolch hwn hon hyn gyda dros rhwng "
    "mawr un",
    "da": "og i at det er en et den de til på som af for med der han hun jeg vi ikke var har "
    "kan skal vil men om så ved fra eller også blev bliver meget noget mig dig os dem sin hvad "
    "hvor når efter over under mange god godt min din være havde denne dette ud op ned nu mod "
    "tak hvordan kat hund sover hus sætning ord spise drikke løbe arbejde barn børn tid liv "
    "land vand by kvinde ven skole bog vej enkel dansk går komme gøre gik se skrive mellem uden "
    "altid aldrig hver andre første sidste stor lille flere været nogle kunne ville hvis fordi "
    "igen ingen løber spiser dag år",
    "de": "der die das und ist nicht ein eine einen einem einer zu den dem des mit für auf im "
    "in von sich auch als es an er sie wir ich du ihr wie aber aus bei nach oder war sind hat "
    "haben wird werden kann können so wenn nur noch um über vor zur zum man mein dein sein ihre "
    "unser diese dieser dieses durch sehr mehr schon was wer wo hier dort guten morgen tag "
    "danke bitte heute jahr leben immer viele gut alle weil dass daß habe bin mich mir dich dir "
    "uns ihn ihm katze hund schläft haus satz wort wörter wörtern essen trinken laufen arbeiten "
    "kind kinder zeit land wasser stadt frau mann freund freunde schule buch weg einfach "
    "einfacher deutscher deutsche gehe geht kommen machen ging sehen schreiben zwischen gegen "
    "unter ohne nie jede andere erste letzte groß klein mehrere liebe abend schnell springt",
    "en": "the of and to in is it that was for on with as be at by this have from or had not "
    "but what all were when we there can an your which their said if do will each about how up "
    "out them then she many some so these would other into has more her two like him see time "
    "could no make than been its who now people my made over did down only way find use may "
    "long very after words just where most know get through back much before also around good "
    "new me our any think a i he you they are his am us here why because should must being too "
    "such even hello world please thank yes answer write sentence don didn isn doesn won ll ve "
    "re s t let number first last day year same does while every without under again between "
    "both few own plain english several small letters full capital text response word below "
    "above contains dog cat sleeps house eat ate drink run work child children life country "
    "water city woman man friend school book road simple quick brown fox jumps lazy went market "
    "yesterday bought apples once upon village young girl lived live night great often things "
    "something everything nothing always never really family home today read love story help "
    "little big old high next left right start began told asked looked going having making "
    "taking",
    "es": "el la los las de del que y en un una unos unas es son por con para no se su sus lo "
    "al como más pero fue este esta estos estas ser está están muy ya también hay todo todos me "
    "mi te tu le les nos yo él ella ellos usted si sí porque cuando donde qué quién cómo sobre "
    "entre sin hasta desde ha han tiene tener hacer puede buenos días gracias hola vida año "
    "años casa bien o era había siempre cada otro otra mucho muchas hoy gato perro mundo eso "
    "esa ese nosotros duerme frase palabra palabras comer beber correr trabajo niño tiempo país "
    "agua ciudad mujer amigo escuela libro calle sencilla español ir venir ido ver escribir "
    "contra nunca primero último grande pequeño gusta manzanas varias sofá",
    "et": "ja on ei see ta ma sa me te nad oli et kui ka mis kes oma aga või ning siis nii seda "
    "selle olen oled olema kõik väga veel juba mitte palju hea tere aitäh päev kus kuidas mida "
    "üks kaks pole saab peale pärast enne tema minu sinu meie nende",
    "fi": "ja on ei se hän minä sinä me te he oli että kun myös mutta tai niin kuin joka mikä "
    "mitä kuka ovat ole olla tämä tuo nämä sen sitä siitä hänen minun sinun meidän kanssa vain "
    "jo nyt vielä hyvin paljon kaikki mukaan jos sekä ollut voi hyvää päivää huomenta kiitos "
    "suomi suomen talo tänään aina missä miten koska jotka häntä niitä olen olet olemme ennen "
    "jälkeen kuten kissa koira nukkuu sohvalla sana sanoja lause syödä juoda juosta työ lapsi "
    "aika elämä maa vesi kaupunki nainen ystävä koulu kirja tie helppo yksinkertainen menee "
    "tulla tehdä näkee kirjoittaa välillä ilman koskaan jokainen toinen ensimmäinen viimeinen "
    "suuri pieni useita omena monta sanottu kaupungissa talossa",
    "fr": "le la les de des du un une et est en que qui dans ce cette ces il elle ils elles je "
    "tu nous vous on ne pas plus pour par sur avec se son sa ses mon ma mes leur leurs au aux "
    "mais ou où comme si tout tous toute être avoir fait faire sont était été ont ai as avez "
    "sommes très bien aussi même sans y d l qu c j n s m t bonjour merci jour vie monde homme "
    "oui non quand chat chien maison petit petite grand toujours encore rien peut deux entre "
    "après avant ici là dort phrase mot mots manger boire courir travail enfant temps pays eau "
    "ville femme ami école livre rue simple français aller venir allé voir écrire contre jamais "
    "chaque autre premier dernier beaucoup pommes plusieurs aime canapé allez",
    "hr": "i je u na se da su za od s o a ne li koji koja koje kao ali bio bila bilo biti sam "
    "si smo ste to ovaj ova ovo taj kako što tko gdje kada ili samo već još vrlo po iz do nije "
    "nisu dobar dan hvala može ima imaju njegov njezin moj tvoj naš mi vi oni ona on sve",
    "hu": "a az és hogy nem is egy van volt ez meg de csak már mint ha vagy mi ki én te ő ti ők "
    "még kell lehet nagyon jó itt ott el be fel le azt ezt amely aki ami mert után előtt alatt "
    "között minden sok napot köszönöm reggelt magyar nap ember ház vagyok lesz nincs hol hogyan "
    "macska kutya alszik mondat szó szóval enni inni futni munka gyerek idő élet ország víz "
    "város nő barát iskola könyv út egyszerű megy jön csinál ment lát írni nélkül mindig soha "
    "másik első utolsó nagy kicsi több alma szeretem",
    "id": "yang dan di ini itu dengan untuk dari tidak dalam adalah akan pada ke saya anda kami "
    "kita mereka dia ada juga bisa atau oleh sudah karena seperti orang hari lebih banyak satu "
    "tetapi sangat harus telah selamat pagi terima kasih apa siapa bagaimana sebagai bahwa kamu "
    "aku hanya kucing anjing tidur rumah kalimat kata makan minum lari kerja anak waktu hidup "
    "negara air kota perempuan teman sekolah buku jalan sederhana bahasa indonesia pergi datang "
    "membuat melihat menulis antara tanpa selalu pernah setiap lain pertama terakhir besar "
    "kecil beberapa apel suka",
    "it": "il lo la i gli le di del della dei delle che e è un uno una in per con non si da dal "
    "dalla sono al alla ai alle nel nella come più ma anche se questo questa questi queste io "
    "tu lui lei noi voi loro mi ti ci vi suo sua mio mia tuo tua ha hanno ho hai essere avere "
    "fare molto tutto tutti quando dove chi cosa perché poi solo sempre già ancora c l d dell "
    "nell all buongiorno grazie ciao giorno vita casa gatto cane mondo bello bella era stato "
    "oggi ogni o su sul sulla dorme frase parola parole mangiare bere correre lavoro bambino "
    "tempo paese acqua città donna amico scuola libro strada semplice italiana andare venire "
    "andato vedere scrivere tra contro senza mai altro primo ultimo grande piccolo piace mele "
    "divano stai",
    "lt": "ir yra kad į su iš ne tai jis ji aš tu mes jūs jie buvo bet kaip o ar apie po prie "
    "už nuo iki kas kur kada labai taip jau dar tik mano tavo jo jos mūsų šis ši šios laba "
    "diena ačiū gali turi būti kuris kuri daug metų dėl pagal",
    "lv": "un ir ka uz ar no ne tas tā viņš viņa es tu mēs jūs viņi bija bet kā par pēc pie vai "
    "lai kas kur kad ļoti arī jau vēl tikai mans tavs mūsu šis šī labdien paldies var būt kurš "
    "kura daudz gadu to tie šo nav",
    "nl": "de het een en van in is dat die op te zijn met voor niet aan er om ook als maar dan "
    "bij nog uit door naar hij zij ze we wij ik je jij jullie u was waren heeft hebben had kan "
    "kunnen wordt worden zal over tot deze dit wat wie waar hoe wel geen mijn jouw haar hun ons "
    "onze meer veel zeer goed goede morgen dag dank alle al zo nu hier daar heel moet mensen "
    "jaar werd kat hond slaapt bank huis zin woord woorden eten drinken lopen werken kind "
    "kinderen tijd leven land water stad vrouw man vriend school boek weg kunt eenvoudige "
    "verschillende gaat komen komt maken ging zien schrijven tussen tegen onder zonder altijd "
    "nooit elke andere eerste laatste groot klein",
    "no": "og i det er på en et som for at til av med de den ikke han hun jeg vi var har kan "
    "skal vil men om så fra eller også ble blir veldig noe meg deg oss dem sin hva hvor når "
    "etter over under mange god godt min din være hadde denne dette ut opp ned nå mot takk "
    "hvordan seg ei da bare mye katt hund sover hus setning ord spise drikke løpe arbeide barn "
    "tid liv land vann by kvinne venn skole bok vei enkel norsk går komme gjøre gikk se skrive "
    "mellom uten alltid aldri hver andre første siste stor liten flere vært noen kunne ville "
    "hvis fordi igjen ingen løper spiser dag år liker",
    "pl": "i w na z się nie to jest że do o jak ale po co za od tak dla przez przy był była "
    "było być są który która które ten ta te tego tej tym jego jej ich my ty on ona oni ja mnie "
    "mi ci czy już tylko jeszcze bardzo może mam masz ma mają gdy kiedy gdzie kto oraz lub ze "
    "we dzień dobry dziękuję dom rok lat dobrze wszystko przed pod nad bez także również więc "
    "kot pies śpi kanapie zdanie słowo słów jeść pić biegać praca dziecko czas życie kraj woda "
    "miasto kobieta przyjaciel szkoła książka droga prosty polski polskie idzie robić szedł "
    "widzieć pisać między przeciw zawsze nigdy każdy inny pierwszy ostatni duży mały kilka "
    "jabłka lubię",
    "pt": "o a os as de do da dos das que e em no na nos nas um uma uns é são não por com para "
    "se seu sua seus suas ao à mais mas como foi ser está estão muito já também há tudo todos "
    "me meu minha te teu eu ele ela eles nós você vocês isso isto este esta esse essa quando "
    "onde quem qual porque sobre entre sem até desde tem ter fazer pode bom dia obrigado "
    "obrigada olá vida ano anos casa bem era sempre cada outro outra ou lo gato mundo hoje pelo "
    "pela num numa aos às dorme frase palavra palavras comer beber correr trabalho criança "
    "tempo país água cidade mulher amigo escola livro rua simples português ir vir ido ver "
    "escrever contra nunca primeiro último grande pequeno gosto maçãs várias sofá",
    "ro": "și si de la în in a un o cu pe nu este sunt că să se din pentru mai ca dar care sau "
    "ce al ale ai au am fost fi era foarte cum când unde cine eu tu el ea noi voi ei lui lor "
    "acest această aceste bună ziua mulțumesc bine toate tot după până prin spre ani zi casă "
    "pisica câine doarme propoziție cuvânt cuvinte mânca bea alerga muncă copil timp viață țară "
    "apă oraș femeie prieten școală carte drum simplă limba română merge veni face mers vedea "
    "scrie între contra fără întotdeauna niciodată fiecare alt primul ultimul mare mic multe "
    "mere place",
    "sk": "a je sa v na že to s z do o k aj som si sme ste sú bol bola bolo byť ale ako tak pre "
    "po od za čo kto ktorý ktorá ktoré ten tá tento táto vo zo by už len tiež keď alebo my ty "
    "on ona oni môj dobrý deň ďakujem veľmi nie majú má môže ešte než pri pred mačka pes spí "
    "veta slovo slov jesť piť bežať práca dieťa čas život krajina voda mesto žena priateľ škola "
    "kniha cesta jednoduchý slovenská ide prísť robiť šiel vidieť písať medzi proti vždy nikdy "
    "každý iný prvý posledný veľký malý niekoľko jablká",
    "sl": "in je v na se da so za od s z o a ne ki kot ali bil bila bilo biti sem si smo ste to "
    "ta te kako kaj kdo kje kdaj samo že še zelo po iz do ni niso dober dan hvala lahko ima "
    "imajo njegov njen moj tvoj naš mi vi oni ona on vse tudi pa pri bi",
    "so": "waa iyo in ka ku u ay uu oo ah ayaa waxa waxaa soo si la leh kale aan wuxuu waxay "
    "badan aad ma maxaa dadka sida mid markii kala isku loo lagu laga ee mahadsanid subax "
    "wanaagsan",
    "sq": "dhe të në e i një që për me nga është janë nuk ka do si por se më ai ajo unë ti ne "
    "ju ata ky kjo këtë shumë mirë ose edhe kur ku kush çfarë kishte ishte mund pas para "
    "faleminderit ditën së tij saj tyre",
    "sv": "och i att det är en ett som på av för med den de till inte han hon jag vi var har "
    "kan ska vill men om så från eller också blev blir mycket något mig dig oss dem sin vad när "
    "efter över under många god gott bra min din vara hade denna detta ut upp ner nu mot tack "
    "hur sig sitt alla man skulle kommer ni du här där finns katt hund sover hus mening ord äta "
    "dricka springa arbeta barn tid liv land vatten stad kvinna vän skola bok väg enkel svensk "
    "går komma göra gick se skriva mellan utan alltid aldrig varje andra första sista stor "
    "liten tycker flera soffan katten",
    "sw": "na ya wa kwa ni katika za la cha kuwa hii huo hiyo yake wake lakini kama sana pia au "
    "si mimi wewe yeye sisi nyinyi wao hapa kila watu mtu siku moja mbili habari asante jambo "
    "nzuri kutoka hadi baada kabla ambayo ambao alikuwa ana nina una tuna wana haya hilo hivyo "
    "yetu yangu vya vizuri leo shule nyumbani kusoma chakula maji mkubwa ndogo paka mbwa "
    "analala sentensi neno maneno kula kunywa kukimbia kazi mtoto watoto wakati maisha nchi mji "
    "mwanamke rafiki kitabu njia rahisi kiswahili anaenda kuja kufanya alienda kuona kuandika "
    "kati bila daima kamwe mwingine kwanza mwisho kadhaa tofaa napenda asubuhi kochi yenye "
    "kwenye anasoma wanaenda anakula tunasoma",
    "tl": "ang ng sa na at ay mga ko mo ka ako ikaw siya kami tayo sila ito iyan iyon hindi may "
    "mayroon para kung dahil pero kaya nang din rin lang po ba si ni kay isang isa dalawa "
    "maganda umaga salamat magandang araw tao bahay namin natin nila niya wala lahat ano sino "
    "saan",
    "tr": "ve bir bu da de için ile ne o çok ama daha gibi en kadar ben sen biz siz onlar var "
    "yok mi mı mu mü değil olan olarak olduğu her şey sonra önce ya ki diye nasıl neden kim "
    "nerede benim senin onun bizim iyi güzel merhaba günaydın teşekkür ederim gün zaman insan "
    "ev şu bana sana ona oldu olur ise veya hem hiç bugün kedi köpek uyuyor cümle kelime "
    "kelimeden yemek içmek koşmak çalışmak çocuk hayat ülke su şehir kadın arkadaş okul kitap "
    "yol basit türkçe gidiyor gelmek yapmak gitti görmek yazmak arasında karşı olmadan asla "
    "diğer ilk son büyük küçük birkaç elma seviyorum oluşan geliyor yapıyor evde kanepede",
    "vi": "và là của có không một những các được trong cho với này đó để người tôi bạn anh em "
    "chúng ta họ nó khi nhưng đã sẽ đang rất cũng như thì mà ở ra vào lên từ về đến làm nhiều "
    "ngày năm nhà xin chào cảm ơn việt nam nói học gì ai đâu tại vì nếu hay hoặc sau trước trên "
    "dưới mọi mèo chó ngủ ghế câu ăn uống chạy việc trẻ con thời gian cuộc sống đất nước thành "
    "phố phụ nữ trường sách đường đơn giản tiếng đi thấy viết giữa bao giờ luôn mỗi khác đầu "
    "cuối lớn nhỏ vài táo thích",
}
CYRILLIC = {
    "bg": "и на в да се за от не е с са по като че но това той тя ние вие те аз ти си ще би има "
    "който която което които беше бил много как какво кой къде кога или само също вече още ако "
    "при до след преди добър ден благодаря съм сме сте към един една котка котката куче спи "
    "изречение дума думи ям пия бягам работа дете време живот страна вода град жена приятел "
    "училище книга път просто българско отива идва прави отиде вижда пише между против без "
    "винаги никога всеки друг първи последен голям малък няколко ябълки обичам дивана градът "
    "книгата",
    "mk": "и на во да се за од не е со како дека но тоа тој таа ние вие тие јас ти си ќе би има "
    "кој која кое кои беше бил многу што каде кога или само исто веќе уште ако при до по пред "
    "добар ден благодарам сум сме сте кон еден една ова овој мачка куче спие реченица збор "
    "зборови јаде пие трча работа дете време живот земја вода град жена пријател училиште книга "
    "пат едноставна македонска оди доаѓа прави отиде гледа пишува меѓу против без секогаш "
    "никогаш секој друг прв последен голем мал неколку јаболка сакам",
    "ru": "и в не на я что он с как это по но они мы она за то из у к все так его от был была "
    "было были же бы для вы ты о мне меня нет да еще ещё есть только уже или если когда где кто "
    "чтобы очень при до после быть который которая которые этот эта эти мой твой наш их ее её "
    "день добрый спасибо привет может можно также один два со мир дом человек жизнь кошка "
    "собака спит предложение слово слов пить бежать работа ребенок время страна вода город "
    "женщина друг школа книга дорога простое русское идет прийти делать пошел видеть писать "
    "между против без всегда никогда каждый другой первый последний большой маленький несколько "
    "яблоки люблю диване",
    "uk": "і в не на я що він з як це по але вони ми вона за то із у до та й все так його від "
    "був була було були же б для ви ти о мені мене ні ще є тільки вже або якщо коли де хто щоб "
    "дуже при після бути який яка які цей ця ці мій твій наш їх її день добрий дякую привіт "
    "може можна також один два зі світ дім людина життя про кіт собака спить речення слово слів "
    "їсти пити бігти робота дитина час країна вода місто жінка друг школа книга дорога просте "
    "українське йде прийти робити пішов бачити писати між проти без завжди ніколи кожен інший "
    "перший останній великий маленький кілька яблука люблю дивані",
}
ARABIC = {
    "ar": "في من على إلى عن أن هذا هذه التي الذي هو هي لا ما مع كان كانت لم لن قد كل بعد قبل "
    "بين أو ثم إن أنا نحن أنت هم ذلك تلك حيث عند حتى لكن غير مرحبا شكرا يوم كما و يا أيضا",
    "fa": "و در به از که این را با است آن برای یک تا بر هم نیز من تو او ما شما آنها بود شد می "
    "شود کرد دارد هر اگر یا اما چه خود های ها خوب سلام روز باید نیست بسیار دیگر کند کنید",
    "ur": "کے کی میں ہے اور سے کا کو یہ پر نے کہ وہ ہیں کر بھی ایک تھا ہم آپ تم نہیں ہو گا گی "
    "تو جو اس ان لیے ساتھ بہت کیا تھی تھے رہا رہے شکریہ دن اپنے اچھا گیا ہوں ہوتا",
}
DEVANAGARI = {
    "hi": "है के में की और से का को यह पर ने कि वह हैं कर भी एक था हम आप तुम मैं नहीं हो गा तो "
    "जो इस उस लिए साथ बहुत क्या थी थे रहा रहे धन्यवाद दिन अपने अच्छा गया हूँ होता ये वे या मेरा",
    "mr": "आहे आणि च्या ते तो ती हे या मी तू आम्ही तुम्ही नाही होते होता होती आहेत मध्ये करून "
    "साठी पण किंवा एक खूप काय कसे का असे त्या माझे त्यांनी त्याने केले धन्यवाद दिवस चांगले आपण "
    "आपल्या ला ने",
    "ne": "छ र को मा हो यो त्यो छन् छु पनि लागि तर वा एक धेरै के कसरी म तिमी हामी उनी उनीहरू "
    "भएको गर्न गर्ने हुन् हुन्छ थियो थिए नेपाल दिन राम्रो धन्यवाद बाट ले लाई सँग हरू गरेको छैन "
    "मेरो हाम्रो",
}
LETTERS = {
    "af": "áèéêëíîïóôöúûü",
    "ca": "àçèéíïòóúü",
    "cs": "áčďéěíňóřšťúůýž",
    "cy": "âêîôŵŷûáéíïëö",
    "da": "æøåé",
    "de": "äöüß",
    "es": "áéíñóúü",
    "et": "äõöüšž",
    "fi": "äöåšž",
    "fr": "àâæçéèêëîïôœùûüÿ",
    "hr": "čćđšž",
    "hu": "áéíóöőúüű",
    "it": "àèéìíîòóùú",
    "lt": "ąčęėįšųūž",
    "lv": "āčēģīķļņšūž",
    "nl": "áéëïóöüèĳ",
    "no": "æøåéòôèâ",
    "pl": "ąćęłńóśźż",
    "pt": "áâãàçéêíóôõúü",
    "ro": "ăâîșțşţ",
    "sk": "áäčďéíĺľňóôŕšťúýž",
    "sl": "čšž",
    "sq": "çë",
    "sv": "åäöéà",
    "tl": "ñ",
    "tr": "çğıöşüâîû",
    "vi": "àáâãèéêìíòóôõùúýăđĩũơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ",
    "bg": "абвгдежзийклмнопрстуфхцчшщъьюя",
    "mk": "абвгдѓежзѕијклљмнњопрстќуфхцчџш",
    "ru": "абвгдеёжзийклмнопрстуфхцчшщъыьэюя",
    "uk": "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя",
    "ar": "ءآأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىي",
    "fa": "ءآأؤئابپتثجچحخدذرزژسشصضطظعغفقکگلمنوهی",
    "ur": "ءآأؤئابپتٹثجچحخدڈذرڑزژسشصضطظعغفقکگلمنںوہھیےۂۓ",
}
"""Letters beyond a to z, and all letters of the other scripts."""
