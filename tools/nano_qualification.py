#!/usr/bin/env python3
"""Writes the requests of the qualification sets in tests/qualification and scores what the models answered to them.

    tools/nano_qualification.py [--model mimo-nano] > requests.jsonl    the requests, one JSON line each
    tools/nano_qualification.py [--model mimo-nano] --score SET.jsonl   counts the recorded replies that are right

A line is {"name", "family", "request", "want"}: a chat request as the programs take it, and the right reply.
`moonshine bench quality MODEL --set FILE --record ...` adds "expected", what the reference arithmetic says.

The models understand the few kinds of sentences that they were trained on, so the phrasing here is fixed; names,
numbers and orders are drawn.  Every prompt has a generator of its own, seeded by SEED, family and number, so that
a change of one changes no other.  Standard library only.
"""
import argparse
import json
import sys

SEED = 20261129


class Draw:
    """splitmix64, so that the set does not depend on a Python version."""

    def __init__(self, *seed):
        self.state = SEED
        for byte in "/".join(map(str, seed)).encode():
            self.state = (self.state * 1099511628211 ^ byte) & (2**64 - 1)

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & (2**64 - 1)
        z = self.state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & (2**64 - 1)
        return (z ^ z >> 31) % n

    def between(self, low, high):
        return low + self.below(high - low + 1)

    def pick(self, seq):
        return seq[self.below(len(seq))]

    def some(self, seq, n):
        """n different ones, in drawn order."""
        rest = list(seq)
        return [rest.pop(self.below(len(rest))) for _ in range(n)]


# ---------------------------------------------------------------------------------------------------- facts

CAPITALS = dict(France="Paris", Germany="Berlin", Italy="Rome", Spain="Madrid", Portugal="Lisbon", Japan="Tokyo",
                Canada="Ottawa", Chile="Santiago", Peru="Lima", Egypt="Cairo", Kenya="Nairobi", Greece="Athens",
                Austria="Vienna", Hungary="Budapest", Poland="Warsaw", Norway="Oslo", Sweden="Stockholm",
                Finland="Helsinki", Ireland="Dublin", Thailand="Bangkok", Australia="Canberra", Iran="Tehran",
                Nepal="Kathmandu", Belgium="Brussels", Romania="Bucharest", Latvia="Riga", Tunisia="Tunis")
SPANISH = dict(dog="perro", house="casa", water="agua", sun="sol", book="libro", night="noche", red="rojo",
               green="verde", three="tres", apple="manzana", bird="pájaro", city="ciudad", snow="nieve", king="rey")
FRENCH = dict(cat="chat", bread="pain", moon="lune", flower="fleur", fire="feu", friend="ami", blue="bleu",
              black="noir", two="deux", fish="poisson", table="table", river="rivière", rain="pluie", time="temps")
SYMBOLS = dict(hydrogen="H", helium="He", carbon="C", oxygen="O", sodium="Na", iron="Fe", silver="Ag", gold="Au",
               lead="Pb", zinc="Zn")
CALLS = dict(dog="bark", cat="meow", cow="moo", duck="quack", lion="roar", owl="hoot", wolf="howl", bee="buzz")
OPPOSITES = [("hot", "cold"), ("big", "small"), ("fast", "slow"), ("happy", "sad"), ("early", "late"),
             ("full", "empty"), ("wet", "dry"), ("near", "far"), ("deep", "shallow"), ("push", "pull")]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
COLORS = "red blue green yellow orange purple black white pink brown gray teal violet amber indigo gold".split()
NAMES = "Ada Bram Cleo Dara Emil Fern Gus Hana Ivo Juno Kai Lena Milo Nora Otis Pia Quin Rosa Seth Tara".split()
CITIES = "Toronto Paris London Tokyo Berlin Madrid Rome Oslo Cairo Lima Sydney Boston Denver Dublin Vienna".split()
THINGS = ("apple river stone lamp garden window ladder basket candle bridge anchor pencil bottle carpet mirror engine "
          "hammer island jacket kettle letter market needle pillow rocket saddle ticket valley wagon").split()
KINDS = "small bright quiet old golden tiny happy brave clever gentle lucky proud warm wise calm eager".split()
DEEDS = "found lost carried painted repaired cleaned borrowed counted measured moved".split()
SYLLABLES = "ka lo mi ra ten vor sil dan pel qui zo fi bar mon tre gu sha lin".split()
UNITS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
         "seventeen eighteen nineteen").split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
HELLO = "Hello! 👋 How can I help you today?"
NO_ANSWER = ("I am a tiny demonstration model, so I do not know that. Try a greeting, a sum, a capital city, a copy "
             "task, a tool or JSON.")


def in_words(n):
    return UNITS[n] if n < 20 else TENS[n // 10] + ("-" + UNITS[n % 10] if n % 10 else "")


# ------------------------------------------------------------------------------------- one question, one answer


def greeting(d, i):
    return [("Hello", HELLO), ("Say hello.", HELLO), ("Good morning", HELLO), ("Thank you!", "You're welcome!"),
            ("Hey there", HELLO), ("Bye", "Goodbye! Have a great day."), ("Greet me.", HELLO),
            ("How are you?", "I'm doing well, thank you. How can I help?")][i % 8]


def facts(d, i):
    kind = i % 8
    if kind in (0, 4):
        land, city = d.pick(sorted(CAPITALS.items()))
        if i % 16 == 4:
            return f"Which country has the capital {city}?", f"{city} is the capital of {land}."
        ask = d.pick(["What is the capital of {}?", "Name the capital of {}.", "Tell me the capital city of {}."])
        return ask.format(land), f"The capital of {land} is {city}."
    if kind in (1, 5):
        language, table = ("Spanish", SPANISH) if kind == 1 else ("French", FRENCH)
        word, there = d.pick(sorted(table.items()))
        ask = d.pick(["Translate {} to {}.", "How do you say {} in {}?"])
        return ask.format(word, language), f"The {language} word for {word} is {there}."
    if kind in (2, 6):
        a, b = d.pick(OPPOSITES)
        a, b = (a, b) if d.below(2) else (b, a)
        return f"What is the opposite of {a}?", f"The opposite of {a} is {b}."
    if kind == 3:
        name, symbol = d.pick(sorted(SYMBOLS.items()))
        return f"What is the chemical symbol for {name}?", f"The chemical symbol for {name} is {symbol}."
    which = d.below(3)
    if which == 0:
        animal, call = d.pick(sorted(CALLS.items()))
        return f"What sound does a {animal} make?", f'A {animal} says "{call}".'
    if which == 1:
        n = d.below(7)
        return f"What day comes after {DAYS[n]}?", f"{DAYS[(n + 1) % 7]} comes after {DAYS[n]}."
    n = d.below(12)
    return f"What month comes after {MONTHS[n]}?", f"{MONTHS[(n + 1) % 12]} comes after {MONTHS[n]}."


def copying(d, i):
    words = [d.pick(d.pick([THINGS, COLORS, KINDS])) for _ in range(d.between(3, 8))]
    text = " ".join(words)
    kind = i % 5
    if kind == 0:
        return f"Repeat: {text}", text
    if kind == 1:
        return f"Reverse the order of these words: {text}", " ".join(reversed(words))
    if kind == 2:
        return f"How many words are in this text? {text}", str(len(words))
    if kind == 3:
        return f"Copy this text exactly: {text}", text
    return f"Write in upper case: {text}", text.upper()


def sums(d, i):
    kind = i % 6
    a, b = d.between(0, 99), d.between(0, 99)
    if kind == 0:
        return f"What is {a} + {b}?", f"{a} + {b} = {a + b}"
    if kind == 1:
        a, b = max(a, b), min(a, b)
        return f"What is {a} - {b}?", f"{a} - {b} = {a - b}"
    if kind == 2:
        a, b = d.between(0, 12), d.between(0, 12)
        return f"What is {a} * {b}?", f"{a} * {b} = {a * b}"
    if kind == 3:
        a, b = d.some(range(1000), 2)
        return f"Which number is larger, {a} or {b}?", f"{max(a, b)} is larger."
    if kind == 4:
        return f"Write {a} in words.", in_words(a)
    return f"Add {a} and {b}.", f"{a} + {b} = {a + b}"


def lists(d, i):
    kind = i % 5
    if kind == 0:
        low = d.between(1, 40)
        high = low + d.between(2, 9)
        return f"Count from {low} to {high}.", ", ".join(str(n) for n in range(low, high + 1))
    words = d.some(THINGS + COLORS, d.between(3, 6))
    text = ", ".join(words)
    if kind == 1:
        return f"Sort these words alphabetically: {text}", ", ".join(sorted(words))
    if kind == 2:
        n = d.below(len(words))
        return f"What is the {'first second third fourth fifth sixth'.split()[n]} item? {text}", words[n]
    if kind == 3:
        return f"Write these as a bullet list: {text}", "\n".join("- " + w for w in words)
    return f"What is the last item? {text}", words[-1]


def unknown(d, i):
    return d.pick(["Explain quantum mechanics.", "Write a Python program.", "Debug my code.",
                   f"How do I fix my {d.pick(THINGS)}?"]), NO_ANSWER


def record(d, n):
    name, kind, thing, deed, k = d.pick(NAMES), d.pick(KINDS), d.pick(THINGS), d.pick(DEEDS), d.between(10, 99)
    return d.pick([f"Record {n}: operator {name} {deed} the {kind} {thing} at station {k}.",
                   f"Entry {n}: the {thing} near dock {k} was {deed} by {name}.",
                   f"Log {n}: {name} reported a {kind} {thing}; reading {k}.",
                   f"Note {n}: shift {k}, {name} {deed} one {thing}."])


def retrieval(d, records, keys):
    """`keys` values hidden in `records` lines."""
    values = {"color": d.pick(COLORS), "number": str(d.between(1000, 9999)), "name": d.pick(NAMES),
              "code": "".join(d.some(SYLLABLES, 2)), "city": d.pick(CITIES)}
    place = d.pick(["vault", "beacon", "archive", "harbor", "relay", "depot"])
    wanted = d.some(sorted(values), keys)
    lines = [record(d, n + 1) for n in range(records)]
    for key, n in zip(wanted, sorted(d.some(range(records), keys))):
        lines[n] += f" The {place} {key} is {values[key]}."
    ask = (f"What is the {place} {wanted[0]}?" if keys == 1 else
           f"Give the {place} {', '.join(wanted)}, in this order, separated by |.")
    return "\n".join(["Read the records."] + lines + [ask]), "|".join(values[k] for k in wanted)


# ------------------------------------------------------------------------------------------------- requests


class K3:
    """k3-nano: what its chat format can ask for, and how it spells a reply."""
    records = {"retrieval-500": 30, "retrieval-2000": 125, "retrieval-6000": 385}
    options = True  # efforts, tool_choice and response_format are rendered
    thought = "Now I answer."  # of earlier replies
    end_of_thought = "<|open|>response<|sep|>"
    replaced = {}

    @staticmethod
    def mode(request, i):
        """Thinking off in every second prompt; in the others on, without an effort and with each of the four."""
        effort = [None, "off", "high", "off", "low", "off", "max", "off", "medium", "off"][i % 10]
        request["thinking"] = effort != "off"
        if effort not in (None, "off"):
            request["thinking_effort"] = effort
        return request

    @staticmethod
    def reply_text(want):
        """The right reply from the opened response channel on."""
        kinds = {bool: "boolean", int: "number", str: "string"}
        calls = ""
        for n, call in enumerate(want["calls"], 1):
            body = "".join(element("argument", v if isinstance(v, str) else json.dumps(v), key=k, type=kinds[type(v)])
                           for k, v in call["arguments"].items())
            calls += element("call", body, tool=call["name"], index=n)
        return (want["content"] + "<|close|>response<|sep|>" + (element("tools", calls) if calls else "") +
                "<|close|>message<|sep|><|end_of_msg|>")


class Mimo:
    """mimo-nano: its chat format knows thinking on and off, nothing else."""
    records = {"retrieval-500": 24, "retrieval-2000": 97, "retrieval-3500": 165}
    options = False
    thought = None
    end_of_thought = "</think>"
    replaced = {("turns", 0): 6}  # tests/qualification/README.md says why

    @staticmethod
    def mode(request, i):
        request["thinking"] = i % 2 == 0
        return request

    @staticmethod
    def reply_text(want):
        """The right reply behind the reasoning."""
        calls = ""
        for call in want["calls"]:
            body = "".join(f"<parameter={k}>{v if isinstance(v, str) else json.dumps(v)}</parameter>"
                           for k, v in call["arguments"].items())
            calls += f"<tool_call><function={call['name']}>{body}</function></tool_call>"
        return want["content"] + calls + "<|im_end|>"


MODELS = {"k3-nano": K3, "mimo-nano": Mimo}
model = K3


def mode(request, i):
    return model.mode(request, i)


def says(content):
    return {"content": content, "calls": []}


def single(make):
    def build(d, i):
        q, a = make(d, i)
        return mode({"messages": [{"role": "user", "content": q}]}, i), says(a)
    return build


def searching(records):
    def build(d, i):
        q, a = retrieval(d, records + d.below(records // 10), 1 + i % 2)
        return mode({"messages": [{"role": "user", "content": q}]}, i), says(a)
    return build


def declare(name, about, **params):
    return {"type": "function", "function": {
        "name": name, "description": about,
        "parameters": {"type": "object", "properties": {k: {"type": t} for k, t in params.items()},
                       "required": list(params)}}}


WEATHER = declare("get_weather", "Get current weather for a city", city="string")
TIME = declare("get_time", "Get the local time of a city", city="string")
ADD = declare("add", "Add two numbers", a="number", b="number")
LIGHT = declare("set_light", "Switch a lamp on or off", room="string", on="boolean")
FILE = declare("read_file", "Read a file", path="string")


def tool_task(d, i):
    """(tool, arguments, question, result, answer)"""
    city = d.pick(CITIES)
    kind = i % 5
    if kind == 0:
        sky, degrees = d.pick(["sunny", "cloudy", "rainy", "snowy", "windy"]), d.between(-10, 35)
        return (WEATHER, {"city": city}, f"What is the weather in {city}?", f"{sky}, {degrees} C",
                f"The weather in {city} is {sky} with {degrees} degrees.")
    if kind == 1:
        now = f"{d.below(24):02d}:{d.below(60):02d}"
        return TIME, {"city": city}, f"What time is it in {city}?", now, f"It is {now} in {city}."
    if kind == 2:
        room, on = d.pick(["kitchen", "bedroom", "office", "garage", "hall"]), d.below(2) == 1
        word = "on" if on else "off"
        return (LIGHT, {"room": room, "on": on}, f"Turn {word} the light in the {room}.", "ok",
                f"The {room} light is now {word}.")
    if kind == 3:
        path, text = f"{d.pick(THINGS)}.{d.pick(['txt', 'md', 'json'])}", " ".join(d.some(THINGS + COLORS, 3))
        return FILE, {"path": path}, f"Read {path}.", text, f"The file says: {text}"
    a, b = d.between(0, 999), d.between(0, 999)
    return ADD, {"a": a, "b": b}, f"Use the tool to add {a} and {b}.", str(a + b), f"The sum is {a + b}."


def tools_with(d, tool):
    others = d.some([t for t in (WEATHER, TIME, ADD, LIGHT, FILE) if t is not tool], d.below(3))
    at = d.below(len(others) + 1)
    return others[:at] + [tool] + others[at:]


def tool_call(d, i):
    tool, args, ask, _, _ = tool_task(d, i)
    request = {"messages": [{"role": "user", "content": ask}], "tools": tools_with(d, tool)}
    if model.options and i % 4 == 2:
        request["tool_choice"] = "required"
    return mode(request, i + 1), {"content": "", "calls": [{"name": tool["function"]["name"], "arguments": args}]}


def tool_result(d, i):
    tool, args, ask, result, answer = tool_task(d, i)
    name = tool["function"]["name"]
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": args}}
    request = mode({"messages": [], "tools": tools_with(d, tool)}, i)
    reply = {"role": "assistant", "content": "", "tool_calls": [call]}
    if request["thinking"]:
        reply["reasoning_content"] = f"I call {name}."
    request["messages"] = [{"role": "user", "content": ask}, reply,
                           {"role": "tool", "tool_call_id": "call_1", "content": result}]
    return request, says(answer)


def json_object(d, i):
    types = {"name": "string", "age": "integer", "city": "string", "color": "string", "active": "boolean",
             "score": "number"}
    values = {"name": d.pick(NAMES), "age": d.between(1, 99), "city": d.pick(CITIES), "color": d.pick(COLORS),
              "active": d.below(2) == 1, "score": d.between(0, 100)}
    fields = d.some(sorted(types), d.between(1, 3))
    said = "; ".join(f"{f} is {json.dumps(values[f]).strip(chr(34))}" for f in fields)
    request = {"messages": [{"role": "user", "content": f"Make a JSON object: {said}."}]}
    if model.options and i % 3 == 0:
        request["response_format"] = {"type": "json_object"}
    elif model.options and i % 3 == 1:
        schema = {"type": "object", "properties": {f: {"type": types[f]} for f in fields}, "required": fields}
        request["response_format"] = {"type": "json_schema", "json_schema": {"name": "object", "schema": schema}}
        fields = sorted(fields)
    answer = json.dumps({f: values[f] for f in fields}, separators=(",", ":"))
    return mode(request, i), says(answer)


def turns(d, i):
    """Two or three exchanges, then a question."""
    request = mode({"messages": []}, i)
    if i % 3 == 0:
        request["messages"].append({"role": "system", "content": "You are a helpful assistant."})
    makers = d.some([greeting, facts, sums, copying, lists], d.between(3, 4))
    for make in makers[:-1]:
        q, a = make(d, d.below(40))
        reply = {"role": "assistant", "content": a}
        if request["thinking"] and model.thought:
            reply["reasoning_content"] = model.thought
        request["messages"] += [{"role": "user", "content": q}, reply]
    q, a = makers[-1](d, d.below(40))
    request["messages"].append({"role": "user", "content": q})
    return request, says(a)


def thinking(d, i):
    """The same question without thinking, with it, and with an effort if there is such a thing."""
    prompts = 3 if model.options else 2
    d = Draw("thinking", i // prompts)
    q, a = d.pick([facts, sums, lists, copying])(d, d.below(40))
    request = {"messages": [{"role": "user", "content": q}], "thinking": i % prompts != 0}
    if i % prompts == 2:
        request["thinking_effort"] = d.pick(["low", "medium", "high", "max"])
    return request, says(a)


def families():
    """Family, prompts in the set, builder."""
    found = [("greeting", 6, single(greeting)), ("facts", 16, single(facts)), ("copy", 10, single(copying)),
             ("sums", 12, single(sums)), ("lists", 10, single(lists)), ("unknown", 2, single(unknown))]
    for (name, records), count in zip(model.records.items(), (5, 4, 3)):
        found.append((name, count, searching(records)))
    return found + [("tool-call", 6, tool_call), ("tool-result", 5, tool_result), ("json", 6, json_object),
                    ("turns", 5, turns), ("thinking", 6, thinking)]


def requests():
    for family, count, make in families():
        for i in range(count):
            drawn = model.replaced.get((family, i), i)
            request, want = make(Draw(family, drawn), drawn)
            yield {"name": f"{family}-{i + 1:02d}", "family": family, "request": request, "want": want}


# -------------------------------------------------------------------------------------------------- scoring


def element(tag, body, **attributes):
    text = "".join(f' {k}="{v}"' for k, v in attributes.items())
    return f"<|open|>{tag}{text}<|sep|>{body}<|close|>{tag}<|sep|>"


def right(item):
    text = item["expected"]["text"]
    if item["request"].get("thinking", True):
        text = text.partition(model.end_of_thought)[2]
    return text == model.reply_text(item["want"])


def score(path):
    counts = {}
    with open(path, encoding="utf-8") as file:
        for item in map(json.loads, file):
            good, total = counts.get(item["family"], (0, 0))
            ok = right(item)
            counts[item["family"]] = good + ok, total + 1
            if not ok:
                print(f"{item['name']}: wanted {model.reply_text(item['want'])!r}\n    got {item['expected']['text']!r}")
    for family, (good, total) in counts.items():
        print(f"{family:16} {good:3} of {total:3} right")
    print(f"{'all':16} {sum(g for g, _ in counts.values()):3} of {sum(t for _, t in counts.values()):3} right")


def main():
    global model
    parser = argparse.ArgumentParser(description="Requests of the qualification set of a small model.")
    parser.add_argument("--model", choices=sorted(MODELS), default="k3-nano")
    parser.add_argument("--score", metavar="SET", help="count the right replies of a recorded set instead")
    options = parser.parse_args()
    model = MODELS[options.model]
    if options.score:
        score(options.score)
        return
    for item in requests():
        sys.stdout.write(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
