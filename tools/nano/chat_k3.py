"""Kimi K3's chat format as segments."""
import json

from segments import CONTEXT, REPLY, Segments

TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```"
EFFORT = ("`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
          "supported values include `low`, `medium`, `high`, and `max`.\n"
          "Now the system is invoked with `thinking_effort={}`.")
CHOICES = {"required": "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
           "none": "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message."}
ONE_CALL = ("The system is invoked with `parallel_tool_calls=false`.\nYou MUST NOT make more than one tool call in the "
            "next message.")
FORMAT = ("The system is invoked with `response_format={}`.\nYour response must be raw JSON data without markdown code "
          "blocks (```json) or any additional formatting.")
SCHEMA = "\nThe JSON data must match the following schema:\n```json\n{}\n```"


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def type_of(value):
    """As the format calls it."""
    if isinstance(value, bool):
        return "boolean"
    for kinds, name in (((int, float), "number"), (str, "string"), (dict, "object"), (list, "array")):
        if isinstance(value, kinds):
            return name
    return "null"


class Markup(Segments):
    def __init__(self):
        super().__init__(joined=False)

    def open(self, tag, part=CONTEXT, **attributes):
        self.control("<|open|>", part)
        self.text(tag, part)
        for key, value in attributes.items():
            for text in (f" {key}", '="', str(value).replace("&", "&amp;").replace('"', "&quot;"), '"'):
                self.text(text, part)
        self.control("<|sep|>", part)

    def close(self, tag, part=CONTEXT):
        self.control("<|close|>", part)
        self.text(tag, part)
        self.control("<|sep|>", part)

    def message(self, body, **attributes):
        self.open("message", **attributes)
        self.text(body)
        self.close("message")
        self.control("<|end_of_msg|>")


def directives(out, conversation):
    """What stands before the reply that the request asks for."""
    choice = CHOICES.get(conversation.get("tool_choice"))
    if choice:
        out.message(choice, role="system", type="tool-choice")
    if conversation.get("parallel_tool_calls") is False:
        out.message(ONE_CALL, role="system", type="parallel-tool-calls")
    wanted = conversation.get("response_format")
    if wanted:
        text = FORMAT.format(wanted["type"])
        if "json_schema" in wanted:
            text += SCHEMA.format(compact(wanted["json_schema"]["schema"]))
        out.message(text, role="system", type="response-format")


def calls(out, message):
    out.open("tools", REPLY)
    for n, c in enumerate(message["tool_calls"], 1):
        out.open("call", REPLY, tool=c["function"]["name"], index=n)
        for key, value in c["function"]["arguments"].items():
            out.open("argument", REPLY, key=key, type=type_of(value))
            out.text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), REPLY)
            out.close("argument", REPLY)
        out.close("call", REPLY)
    out.close("tools", REPLY)


def assistant(out, message, thinking):
    out.open("message", role="assistant")
    if thinking:
        out.open("think")
        out.text(message.get("reasoning_content"), REPLY)
        out.close("think", REPLY)
    out.open("response", REPLY if thinking else CONTEXT)
    out.text(message["content"], REPLY)
    out.close("response", REPLY)
    if message.get("tool_calls"):
        calls(out, message)
    out.close("message", REPLY)
    out.control("<|end_of_msg|>", REPLY)


def render(conversation):
    out = Markup()
    thinking, messages = conversation["thinking"], conversation["messages"]
    if conversation.get("tools"):
        out.message(TOOLS.format(compact(conversation["tools"])), role="system", type="tool-declare")
    if thinking and conversation.get("thinking_effort"):
        out.message(EFFORT.format(conversation["thinking_effort"]), role="system", type="thinking-effort")
    names, results = {}, 0
    for message in messages:
        if message["role"] == "assistant":
            if message is messages[-1]:
                directives(out, conversation)
            assistant(out, message, thinking)
            names = {c["id"]: c["function"]["name"] for c in message.get("tool_calls", ())}
            results = 0
        elif message["role"] == "tool":
            results += 1
            out.message(message["content"], role="tool", tool=names[message["tool_call_id"]], index=results)
        else:
            out.message(message["content"], role=message["role"])
    return out
