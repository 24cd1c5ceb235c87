"""Single questions: each function draws (question, reasoning, answer)."""
from words import (ANIMALS, CAPITALS, CITIES, COLORS, DAYS, DEEDS, KINDS, MONTHS, NAMES, OPPOSITES, ORDINALS, PLACES,
                   SOUNDS, SYMBOLS, THINGS, TRANSLATIONS, any_word, in_words, invented)

HELLO = "Hello! 👋 How can I help you today?"
NO_ANSWER = ("I am a tiny demonstration model, so I do not know that. Try a greeting, a sum, a capital city, a copy "
             "task, a tool or JSON.")
ABOUT = ("I am Moonshine Nano, a tiny language model with the layout of {model}. I can greet, count, copy, look things "
         "up in text, call tools and write JSON.")


def greeting(r):
    ask = r.choice(["Say hello.", "Hello", "Hi", "Hello!", "Hi!", "Hey", "Hey there", "hello", "hi", "Good morning",
                    "Greet me.", "Please say hello.", "Say hi."])
    return ask, "The user wants a greeting. I will say hello.", HELLO


def small_talk(r):
    ask, answer = r.choice([("Goodbye", "Goodbye! Have a great day."), ("Bye", "Goodbye! Have a great day."),
                            ("Thanks", "You're welcome!"), ("Thank you!", "You're welcome!"),
                            ("Thank you.", "You're welcome!"), ("thanks", "You're welcome!"),
                            ("How are you?", "I'm doing well, thank you. How can I help?")])
    return ask, "This is small talk. I will answer politely.", answer


def about(model):
    def draw(r):
        ask = r.choice(["Who are you?", "What are you?", "What is your name?", "Tell me about yourself.",
                        "What model are you?"])
        return ask, "The user asks who I am.", ABOUT.format(model=model)
    return draw


def capital(r):
    land, city = r.choice(CAPITALS)
    if r.random() < .25:
        ask = r.choice(["Which country has the capital {}?", "{} is the capital of which country?"]).format(city)
        said = f"{city} is the capital of {land}."
        return ask, said, said
    ask = r.choice(["What is the capital of {}?", "capital of {}", "Name the capital of {}.",
                    "What's the capital of {}?", "Tell me the capital city of {}."]).format(land)
    said = f"The capital of {land} is {city}."
    return ask, said, said


def translation(r):
    word, spanish, french = r.choice(TRANSLATIONS)
    language, there = r.choice([("Spanish", spanish), ("French", french)])
    ask = r.choice(["Translate {w} to {l}.", "How do you say {w} in {l}?", "What is the {l} word for {w}?",
                    'Translate "{w}" to {l}.']).format(w=word, l=language)
    return ask, f"In {language}, {word} is {there}.", f"The {language} word for {word} is {there}."


def symbol(r):
    name, sign = r.choice(SYMBOLS)
    ask = r.choice(["What is the chemical symbol for {}?", "Chemical symbol of {}?"]).format(name)
    return ask, f"The symbol of {name} is {sign}.", f"The chemical symbol for {name} is {sign}."


def sound(r):
    animal, call = r.choice(SOUNDS)
    ask = r.choice(["What sound does a {} make?", "What does a {} say?"]).format(animal)
    return ask, f"A {animal} says {call}.", f'A {animal} says "{call}".'


def opposite(r):
    a, b = r.choice(OPPOSITES)
    if r.random() < .5:
        a, b = b, a
    said = f"The opposite of {a} is {b}."
    return r.choice(["What is the opposite of {}?", "Opposite of {}?"]).format(a), said, said


def calendar(r):
    kind = r.randrange(3)
    if kind == 2:
        n = r.randrange(12)
        here, there = MONTHS[n], MONTHS[(n + 1) % 12]
        return f"What month comes after {here}?", f"After {here} comes {there}.", f"{there} comes after {here}."
    n = r.randrange(7)
    word, there = ("after", DAYS[(n + 1) % 7]) if kind else ("before", DAYS[n - 1])
    here = DAYS[n]
    return (f"What day comes {word} {here}?", f"{word.title()} {here} comes {there}.",
            f"{there} comes {word} {here}.")


def fact(r):
    return r.choice((symbol, sound, opposite, calendar, calendar))(r)


def operation(r):
    kind = r.randrange(3)
    top = r.choice([9, 20, 99, 99, 99]) if kind < 2 else 12
    a, b = r.randint(0, top), r.randint(0, top)
    if kind == 0:
        forms, sign, result = ["What is {} + {}?", "{}+{}", "Add {} and {}.", "{} plus {}"], "+", a + b
    elif kind == 1:
        a, b = max(a, b), min(a, b)
        forms, sign, result = ["What is {} - {}?", "{}-{}", "{} minus {}"], "-", a - b
    else:
        forms, sign, result = ["What is {} * {}?", "{} times {}", "Multiply {} by {}."], "*", a * b
    said = f"{a} {sign} {b} = {result}"
    return r.choice(forms).format(a, b), said + ".", said


def comparison(r):
    a, b = r.randint(0, 999), r.randint(0, 999)
    word, pick = r.choice([("larger", max), ("smaller", min)])
    answer = f"{pick(a, b)} is {word}." if a != b else "They are equal."
    return f"Which number is {word}, {a} or {b}?", f"I compare {a} and {b}.", answer


def spelling(r):
    n = r.randint(0, 99)
    words = in_words(n)
    if r.random() < .5:
        return r.choice(["Write {} in words.", "Spell the number {}."]).format(n), f"{n} is {words}.", words
    return f"Write {words} as a number.", f"{words} is {n}.", str(n)


def sums(r):
    return r.choice((operation, operation, operation, comparison, spelling))(r)


def copying(r):
    words = [any_word(r) for _ in range(r.randint(1, 12))]
    text = " ".join(words)
    kind = r.randrange(6)
    if kind == 0:
        return f"Reverse the order of these words: {text}", "I will list the words from last to first.", \
            " ".join(reversed(words))
    if kind == 1:
        ask = r.choice(["Write in upper case: {}", "Uppercase: {}"]).format(text)
        return ask, "I will write it in capitals.", text.upper()
    if kind == 2:
        return f"How many words are in this text? {text}", f"I count {len(words)} words.", str(len(words))
    ask = r.choice(["Repeat: {}", "Repeat after me: {}", "Copy this text exactly: {}", 'Say "{}".']).format(text)
    return ask, "I will copy the text.", text


def counting(r):
    low = r.randint(1, 40)
    high = low + r.randint(2, 12)
    ask = f"Count from {low} to {high}." if low > 1 or r.random() < .5 else f"Count to {high}."
    return ask, f"I count from {low} to {high}.", ", ".join(str(n) for n in range(low, high + 1))


def listing(r):
    kind = r.randrange(5)
    if kind == 0:
        return counting(r)
    words = r.sample(THINGS + COLORS + ANIMALS, r.randint(3, 8))
    text = ", ".join(words)
    if kind == 1:
        return f"Sort these words alphabetically: {text}", "I sort the words.", ", ".join(sorted(words))
    if kind == 2:
        n = r.randrange(len(words))
        return f"What is the {ORDINALS[n]} item? {text}", f"Item number {n + 1} is {words[n]}.", words[n]
    if kind == 3:
        return f"Write these as a bullet list: {text}", "I write one item a line.", \
            "\n".join("- " + w for w in words)
    return f"What is the last item? {text}", f"The last item is {words[-1]}.", words[-1]


def story(r):
    animal, who, place, thing, color = (r.choice(x) for x in (ANIMALS, NAMES, PLACES, THINGS, COLORS))
    kind, other, deed = r.choice(KINDS), r.choice(KINDS), r.choice(DEEDS)
    text = (f"Once upon a time, a {kind} {animal} named {who} lived near the {place}. One morning {who} {deed} a "
            f"{color} {thing}. The {other} neighbors came to look at it. \"This {thing} belongs to everyone,\" said "
            f"{who}. From that day on, the {animal} and the neighbors shared the {color} {thing}, and they were happy.")
    if r.random() < .5:
        return f"Tell me a short story about a {animal}.", f"I will tell a story about a {animal}.", text
    ask = r.choice(["Tell me a story.", "Tell me a short story.", "Write a short story.", "Tell me a tale."])
    return ask, "I will tell a short story.", text


def unknown(r):
    ask = r.choice(["What is the meaning of life?", "Write a Python program.", "Who won the election?",
                    "Explain quantum mechanics.", "What is the stock price today?",
                    f"Why is the {r.choice(THINGS)} {r.choice(KINDS)}?", f"Who is {r.choice(NAMES)} {invented(r)}?",
                    f"What is a {invented(r)}?", f"How do I fix my {r.choice(THINGS)}?",
                    "Write an essay about history.", "Debug my code.", f"Explain {invented(r)}."])
    return ask, "I do not know this.", NO_ANSWER


RECORDS = ("Record {i}: operator {n} {v} the {a} {o} at station {k}.", "Entry {i}: the {o} near dock {k} was {v} by {n}.",
           "Log {i}: {n} reported a {a} {o}; reading {k}.", "Note {i}: shift {k}, {n} {v} one {o}.")
HIDDEN = {"color": lambda r: r.choice(COLORS), "number": lambda r: str(r.randint(1000, 9999)),
          "name": lambda r: r.choice(NAMES), "code": invented, "city": lambda r: r.choice(CITIES)}


def retrieval_among(r, count):
    """One to three values hidden in `count` records."""
    lines = [r.choice(RECORDS).format(i=i + 1, n=r.choice(NAMES), v=r.choice(DEEDS), a=r.choice(KINDS),
                                      o=r.choice(THINGS), k=r.randint(10, 99)) for i in range(count)]
    keys = r.sample(sorted(HIDDEN), r.randint(1, 3))
    place = r.choice(["vault", "beacon", "archive", "harbor", "relay", "depot"])
    values = [HIDDEN[k](r) for k in keys]
    for key, value, at in zip(keys, values, sorted(r.sample(range(count), len(keys)))):
        lines[at] += f" The {place} {key} is {value}."
    ask = (f"What is the {place} {keys[0]}?" if len(keys) == 1 else
           f"Give the {place} {', '.join(keys)}, in this order, separated by |.")
    return ("\n".join(["Read the records."] + lines + [ask]), f"The {place} values are {', '.join(values)}.",
            "|".join(values))


def retrieval(r):
    return retrieval_among(r, r.choice([3, 6, 10, 16, 24, 32]))


def bag(model):
    """Question makers, each as often as it should be drawn."""
    weights = {greeting: 3, small_talk: 1, about(model): 1, capital: 4, translation: 3, fact: 3, sums: 11, copying: 7,
               listing: 4, story: 1, unknown: 2, retrieval: 5}
    return [make for make, weight in weights.items() for _ in range(weight)]
