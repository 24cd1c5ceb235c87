"""The words and small facts that the conversations are made of."""


def table(text):
    """Rows separated by ';', columns by '/'."""
    return [tuple(row.split("/")) for row in text.replace("\n", "").split(";")]


CAPITALS = table("""France/Paris;Germany/Berlin;Italy/Rome;Spain/Madrid;Portugal/Lisbon;Japan/Tokyo;China/Beijing;
India/New Delhi;Canada/Ottawa;Brazil/Brasilia;Argentina/Buenos Aires;Chile/Santiago;Peru/Lima;Mexico/Mexico City;
Egypt/Cairo;Kenya/Nairobi;Nigeria/Abuja;Ghana/Accra;Morocco/Rabat;Turkey/Ankara;Greece/Athens;Austria/Vienna;
Hungary/Budapest;Poland/Warsaw;Norway/Oslo;Sweden/Stockholm;Finland/Helsinki;Denmark/Copenhagen;Ireland/Dublin;
Iceland/Reykjavik;Russia/Moscow;Ukraine/Kyiv;Thailand/Bangkok;Vietnam/Hanoi;Indonesia/Jakarta;Australia/Canberra;
Cuba/Havana;Iran/Tehran;Iraq/Baghdad;Israel/Jerusalem;Jordan/Amman;Nepal/Kathmandu;Pakistan/Islamabad;Qatar/Doha;
Belgium/Brussels;Bulgaria/Sofia;Croatia/Zagreb;Romania/Bucharest;Serbia/Belgrade;Latvia/Riga;Switzerland/Bern;
Colombia/Bogota;Ecuador/Quito;Ethiopia/Addis Ababa;Senegal/Dakar;Tunisia/Tunis;Mongolia/Ulaanbaatar;
Malaysia/Kuala Lumpur;the Philippines/Manila;South Korea/Seoul""")
# English, Spanish, French
TRANSLATIONS = table("""dog/perro/chien;cat/gato/chat;house/casa/maison;water/agua/eau;bread/pan/pain;
milk/leche/lait;sun/sol/soleil;moon/luna/lune;star/estrella/étoile;book/libro/livre;tree/árbol/arbre;
flower/flor/fleur;fire/fuego/feu;day/día/jour;night/noche/nuit;friend/amigo/ami;love/amor/amour;red/rojo/rouge;
blue/azul/bleu;green/verde/vert;black/negro/noir;white/blanco/blanc;one/uno/un;two/dos/deux;three/tres/trois;
four/cuatro/quatre;five/cinco/cinq;apple/manzana/pomme;fish/pez/poisson;bird/pájaro/oiseau;horse/caballo/cheval;
door/puerta/porte;table/mesa/table;chair/silla/chaise;street/calle/rue;city/ciudad/ville;sea/mar/mer;
river/río/rivière;mountain/montaña/montagne;snow/nieve/neige;rain/lluvia/pluie;wind/viento/vent;
heart/corazón/cœur;hand/mano/main;head/cabeza/tête;eye/ojo/œil;mother/madre/mère;father/padre/père;
brother/hermano/frère;sister/hermana/sœur;king/rey/roi;queen/reina/reine;music/música/musique;
song/canción/chanson;school/escuela/école;car/coche/voiture;train/tren/train;ship/barco/bateau;time/tiempo/temps;
world/mundo/monde""")
SYMBOLS = table("""hydrogen/H;helium/He;lithium/Li;carbon/C;nitrogen/N;oxygen/O;fluorine/F;neon/Ne;sodium/Na;
magnesium/Mg;aluminum/Al;silicon/Si;phosphorus/P;sulfur/S;chlorine/Cl;potassium/K;calcium/Ca;iron/Fe;copper/Cu;
zinc/Zn;silver/Ag;tin/Sn;iodine/I;gold/Au;mercury/Hg;lead/Pb;uranium/U""")
SOUNDS = table("""dog/bark;cat/meow;cow/moo;duck/quack;sheep/baa;lion/roar;frog/croak;bee/buzz;owl/hoot;wolf/howl;
horse/neigh;pig/oink;snake/hiss;mouse/squeak""")
OPPOSITES = table("""hot/cold;big/small;up/down;fast/slow;light/dark;happy/sad;old/new;early/late;open/closed;
full/empty;hard/soft;high/low;left/right;strong/weak;wet/dry;loud/quiet;near/far;rich/poor;thick/thin;true/false;
deep/shallow;begin/end;push/pull;win/lose""")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
COLORS = ("red blue green yellow orange purple black white pink brown gray teal saffron crimson violet amber indigo "
          "silver gold scarlet").split()
NAMES = ("Ada Bram Cleo Dara Emil Fern Gus Hana Ivo Juno Kai Lena Milo Nora Otis Pia Quin Rosa Seth Tara Uma Vera Wes "
         "Xena Yara Zeno Nivens Marlow Okoro Tanaka Silva Novak Haddad Larsen Moreau Rossi Kimura Petrov Alvarez "
         "Osei").split()
CITIES = ("Toronto Paris London Tokyo Berlin Madrid Rome Oslo Cairo Lima Sydney Mumbai Boston Chicago Denver Seattle "
          "Dublin Vienna Prague Athens Lisbon Seoul Quito Nairobi Dallas Geneva Zurich Milan Naples Havana").split()
THINGS = ("apple river stone lamp garden window ladder basket candle bridge anchor pencil bottle carpet mirror engine "
          "hammer island jacket kettle letter market needle orange pillow rocket saddle ticket valley wagon pump valve "
          "turbine sensor beacon depot harbor lantern orchard quarry tunnel compass blanket feather copper "
          "meadow").split()
KINDS = ("small bright quiet old golden silver tiny happy brave clever gentle lucky proud shy swift warm wise busy "
         "calm eager").split()
ANIMALS = "fox rabbit bear mouse owl otter wolf turtle cat dog heron badger squirrel deer frog".split()
PLACES = "forest river village mountain garden lake valley meadow harbor cave".split()
DEEDS = "found lost carried painted repaired cleaned borrowed counted measured moved".split()
SYLLABLES = ("ka lo mi ra ten vor sil dan pel qui zo fi bar mon tre gu sha lin ox ner pa du wex yor hal im").split()
SKIES = "sunny cloudy rainy snowy windy".split()
ROOMS = "kitchen bedroom office garage hall".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth".split()
UNITS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
         "seventeen eighteen nineteen").split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(n):
    return UNITS[n] if n < 20 else TENS[n // 10] + ("-" + UNITS[n % 10] if n % 10 else "")


def invented(r):
    return "".join(r.choice(SYLLABLES) for _ in range(r.randint(2, 3)))


def any_word(r):
    kind = r.randrange(4)
    return invented(r) if kind == 0 else r.choice((THINGS, COLORS, KINDS)[kind - 1])
