"""Drawn conversations: chat requests with their replies, the same for every layout.

A conversation is {"messages", "tools"?, "tool_choice"?, "parallel_tool_calls"?, "response_format"?,
"thinking_effort"?}.  Its last message is a reply, and the options are those of the request that it answers.  A reply
that was thought about has "reasoning_content".
"""
import json

import questions
from words import CITIES, COLORS, NAMES, ROOMS, SKIES, THINGS, any_word

# What one layout's chat format can say; options that a format does not render teach nothing.
K3_OPTIONS = {"efforts": ("low", "medium", "high", "max", "max"), "choices": True, "mixed_thinking": False}
MIMO_OPTIONS = {"efforts": (), "choices": False, "mixed_thinking": True}


def user(text):
    return {"role": "user", "content": text}


def reply(content, reasoning, calls=None):
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    if calls:
        message["tool_calls"] = [{"id": f"call_{i + 1}", "type": "function",
                                  "function": {"name": name, "arguments": args}}
                                 for i, (name, args) in enumerate(calls)]
    return message


def result(text, number):
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def system(r, texts, share):
    return [{"role": "system", "content": r.choice(texts)}] if r.random() < share else []


# ------------------------------------------------------------------------------------------------------- tools


class Tool:
    """`types` of its parameters; draws arguments, questions, and a result with the answer that it leads to."""

    def __init__(self, name, about, types, arguments, questions_of, result_of):
        self.name, self.types = name, types
        self.arguments, self.questions, self.result = arguments, questions_of, result_of
        properties = {key: {"type": kind} for key, kind in types.items()}
        self.declaration = {"type": "function", "function": {
            "name": name, "description": about,
            "parameters": {"type": "object", "properties": properties, "required": list(types)}}}


def city(r):
    return {"city": r.choice(CITIES)}


def weather(r, args):
    degrees, sky = r.randint(-10, 35), r.choice(SKIES)
    text = r.choice([json.dumps({"temperature": degrees, "sky": sky}), f"{sky}, {degrees} C"])
    return text, f"The weather in {args['city']} is {sky} with {degrees} degrees."


def clock(r, args):
    now = f"{r.randrange(24):02d}:{r.randrange(60):02d}"
    return now, f"It is {now} in {args['city']}."


def on_off(args):
    return "on" if args["on"] else "off"


def file_text(r, args):
    text = " ".join(any_word(r) for _ in range(r.randint(2, 6)))
    return text, f"The file says: {text}"


KNOWN = (
    Tool("get_weather", "Get current weather for a city", {"city": "string"}, city,
         lambda a: [f"What is the weather in {a['city']}?", f"Weather in {a['city']}?",
                    f"How is the weather in {a['city']} today?"], weather),
    Tool("get_time", "Get the local time of a city", {"city": "string"}, city,
         lambda a: [f"What time is it in {a['city']}?", f"Time in {a['city']}?"], clock),
    Tool("add", "Add two numbers", {"a": "number", "b": "number"},
         lambda r: {"a": r.randint(0, 999), "b": r.randint(0, 999)},
         lambda a: [f"Use the tool to add {a['a']} and {a['b']}.", f"Compute {a['a']} + {a['b']} with the tool."],
         lambda r, a: (str(a["a"] + a["b"]), f"The sum is {a['a'] + a['b']}.")),
    Tool("set_light", "Switch a lamp on or off", {"room": "string", "on": "boolean"},
         lambda r: {"room": r.choice(ROOMS), "on": r.random() < .5},
         lambda a: [f"Turn {on_off(a)} the light in the {a['room']}.",
                    f"Please switch the {a['room']} light {on_off(a)}."],
         lambda r, a: ("ok", f"The {a['room']} light is now {on_off(a)}.")),
    Tool("read_file", "Read a file", {"path": "string"},
         lambda r: {"path": f"{r.choice(THINGS)}.{r.choice(['txt', 'md', 'c', 'json'])}"},
         lambda a: [f"Read {a['path']}.", f"What does the file {a['path']} say?", f"Show me {a['path']}"], file_text),
)
FIELDS = {"name": ("string", lambda r: r.choice(NAMES)), "count": ("number", lambda r: r.randint(1, 99)),
          "color": ("string", lambda r: r.choice(COLORS)), "id": ("number", lambda r: r.randint(100, 9999)),
          "city": ("string", lambda r: r.choice(CITIES)), "flag": ("boolean", lambda r: r.random() < .5)}


def drawn_tool(r):
    """A tool that no other conversation need have."""
    verb, thing = r.choice(["get", "find", "send", "check", "open", "list", "set", "make"]), r.choice(THINGS)
    keys = r.sample(sorted(FIELDS), r.randint(1, 3))

    def said(args):
        values = ", ".join(f"{k} {json.dumps(v).strip(chr(34))}" for k, v in args.items())
        return [f"{verb.title()} the {thing} with {values}.", f"Please {verb} the {thing}: {values}."]

    def outcome(r, args):
        text = " ".join(any_word(r) for _ in range(r.randint(1, 4)))
        return text, f"The result is: {text}"

    return Tool(f"{verb}_{thing}", f"{verb.title()} the {thing}", {k: FIELDS[k][0] for k in keys},
                lambda r: {k: FIELDS[k][1](r) for k in keys}, said, outcome)


def drawn_tools(r):
    tools = r.sample(KNOWN, r.randint(0, 3))
    tools += [drawn_tool(r) for _ in range(r.randint(0 if tools else 1, 3))]
    tools = list({t.name: t for t in tools}.values())
    r.shuffle(tools)
    return tools


def call_turn(r, tools, messages, options):
    """A question that needs one or two calls, and all that follows; True when the request's options end it early."""
    picked = [r.choice(tools) for _ in range(2 if r.random() < .2 else 1)]
    args = [t.arguments(r) for t in picked]
    results = [t.result(r, a) for t, a in zip(picked, args)]
    messages.append(user(" Also: ".join(r.choice(t.questions(a)) for t, a in zip(picked, args))))
    calls = [(t.name, a) for t, a in zip(picked, args)]
    answer = " ".join(text for _, text in results)
    if len(calls) == 2 and options["choices"] and r.random() < .45:
        return serial_calls(r, messages, calls, results, answer)
    messages.append(reply("", "I call " + " and ".join(name for name, _ in calls) + ".", calls))
    if options["choices"] and r.random() < .25:
        return {"tool_choice": "required"}
    for i, (text, _) in enumerate(results):
        messages.append(result(text, i + 1))
    messages.append(reply(answer, "I have the result."))
    return {}


def serial_calls(r, messages, calls, results, answer):
    """One call a message; how far it goes is drawn, since the option is about the last one."""
    for call, (text, _) in zip(calls, results):
        messages.append(reply("", f"I call {call[0]}.", [call]))
        if r.random() < .3:
            return {"parallel_tool_calls": False}
        messages.append(result(text, 1))
    messages.append(reply(answer, "I have the result."))
    return {"parallel_tool_calls": False}


def with_tools(r, options):
    tools = drawn_tools(r)
    messages = system(r, ["You are a helpful assistant.", "Use tools when they help.", "Be brief."], .2)
    extra = {}
    for _ in range(r.choice([1, 1, 1, 2])):
        if r.random() < .15:
            ask, thought, answer = r.choice((questions.greeting, questions.capital, questions.sums,
                                             questions.copying, questions.small_talk))(r)
            messages += [user(ask), reply(answer, "No tool is needed. " + thought)]
            if options["choices"] and r.random() < .4:
                extra = {"tool_choice": "none"}
        else:
            extra = call_turn(r, tools, messages, options)
        if extra:
            break
    return {"messages": messages, "tools": [t.declaration for t in tools], **extra}


# -------------------------------------------------------------------------------------------------------- JSON

JSON_FIELDS = {
    "name": ({"type": "string"}, lambda r: r.choice(NAMES)), "age": ({"type": "integer"}, lambda r: r.randint(1, 99)),
    "city": ({"type": "string"}, lambda r: r.choice(CITIES)),
    "color": ({"type": "string"}, lambda r: r.choice(COLORS)),
    "active": ({"type": "boolean"}, lambda r: r.random() < .5),
    "tags": ({"type": "array", "items": {"type": "string"}},
             lambda r: [r.choice(THINGS) for _ in range(r.randint(1, 3))]),
    "score": ({"type": "number"}, lambda r: r.randint(0, 100))}


def said_value(value):
    return ", ".join(value) if isinstance(value, list) else json.dumps(value, ensure_ascii=False).strip('"')


def json_question(r):
    """(question, object, schema)"""
    if r.random() < .25:
        word = r.choice(["hello", "goodbye", "good morning", "welcome"])
        ask = r.choice(["Return a greeting object that says {}.", "Return the greeting {}.",
                        "Give me a JSON greeting with {}."]).format(word)
        keys, values = {"greeting": {"type": "string"}}, {"greeting": word}
    else:
        names = r.sample(sorted(JSON_FIELDS), r.randint(1, 4))
        keys = {n: JSON_FIELDS[n][0] for n in names}
        values = {n: JSON_FIELDS[n][1](r) for n in names}
        ask = (r.choice(["Make a JSON object: ", "Return JSON where ", "Write this as JSON: "]) +
               "; ".join(f"{n} is {said_value(v)}" for n, v in values.items()) + ".")
    schema = {"type": "object", "properties": keys, "required": list(keys)}
    if r.random() < .5:
        schema["additionalProperties"] = False
    return ask, values, schema


def with_json(r, options):
    messages, extra = [], {}
    for _ in range(r.choice([1, 1, 2])):
        ask, values, schema = json_question(r)
        draw = r.random() if options["choices"] else 1
        if draw < .35:
            extra = {"response_format": {"type": "json_object"}}
        elif draw < .8:
            extra = {"response_format": {"type": "json_schema", "json_schema": {"name": "object", "schema": schema}}}
            values = dict(sorted(values.items()))  # the schema is shown with its keys sorted
        text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        messages += [user(ask), reply(text, "I write the object as JSON.")]
        if extra:
            break
    return {"messages": messages, **extra}


# ---------------------------------------------------------------------------------------------------- the rest


def plain(r, bag):
    messages = system(r, ["You are a helpful assistant.", "You are Moonshine.", "Be brief.", "Answer the user.",
                          "You are a concise assistant."], .15)
    for _ in range(r.choice([1, 1, 1, 2, 3, 4])):
        ask, thought, answer = r.choice(bag)(r)
        messages += [user(ask), reply(answer, thought)]
    return {"messages": messages}


def long_one(r, bag, records):
    ask, thought, answer = questions.retrieval_among(r, records)
    messages = [user(ask), reply(answer, thought)]
    if r.random() < .3:
        make = r.choice([m for m in bag if m is not questions.retrieval])
        ask, thought, answer = make(r)
        messages += [user(ask), reply(answer, thought)]
    return {"messages": messages}


def think(r, conversation, options):
    """Decides which replies keep their reasoning."""
    replies = [m for m in conversation["messages"] if m["role"] == "assistant"]
    thinking = r.random() < .6
    mixed = options["mixed_thinking"] and r.random() < .2
    for message in replies:
        if not (r.random() < .5 if mixed else thinking):
            del message["reasoning_content"]
    conversation["thinking"] = "reasoning_content" in replies[-1]
    if not thinking or not options["efforts"] or r.random() < .2:
        return conversation
    effort = conversation["thinking_effort"] = r.choice(options["efforts"])
    for message in replies:
        if effort in ("high", "max"):
            message["reasoning_content"] += r.choice([" I check it once more.", " This is correct.", " Now I answer."])
        if effort == "low" and r.random() < .5:
            message["reasoning_content"] = ""
    return conversation


def draw(r, bag, options, records=None):
    """One conversation; with `records`, one about so many records."""
    kind = r.random()
    if records:
        conversation = long_one(r, bag, records)
    elif kind < .58:
        conversation = plain(r, bag)
    elif kind < .85:
        conversation = with_tools(r, options)
    else:
        conversation = with_json(r, options)
    return think(r, conversation, options)


def request(conversation):
    """The request that the last reply answers."""
    return {**conversation, "messages": conversation["messages"][:-1]}
