"""MiMo V2.6's chat format as segments (text, is a control token, belongs to a reply)."""
import json


class Segments(list):
    """Text between two control tokens is one segment, since it is encoded as a whole."""

    def control(self, name, reply=False):
        self.append((name, True, reply))

    def text(self, text, reply=False):
        if not text:
            return
        if self and not self[-1][1] and self[-1][2] == reply:
            text = self.pop()[0] + text
        self.append((text, False, reply))


def spaced(value):
    return json.dumps(value, ensure_ascii=False)


def turn(out, role, body):
    out.control("<|im_start|>")
    out.text(f"{role}\n{body}")
    out.control("<|im_end|>")


def declare(out, tools):
    lines = "".join("\n" + spaced(t) for t in tools)
    turn(out, "system", f"You are provided with the following tools:\n\n<tools>{lines}\n</tools>")


def call(out, function):
    out.control("<tool_call>", True)
    parameters = "".join(f"<parameter={k}>{v if isinstance(v, str) else spaced(v)}</parameter>"
                         for k, v in function["arguments"].items())
    out.text(f"<function={function['name']}>{parameters}</function>", True)
    out.control("</tool_call>", True)


def assistant(out, message):
    out.control("<|im_start|>")
    out.text("assistant\n")
    thought = message.get("reasoning_content")
    out.control("<think>", thought is not None)
    out.text(thought, True)
    out.control("</think>", thought is not None)
    out.text(message["content"], True)
    for c in message.get("tool_calls", ()):
        call(out, c["function"])
    out.control("<|im_end|>", True)


def render(conversation):
    out = Segments()
    if conversation.get("tools"):
        declare(out, conversation["tools"])
    for message in conversation["messages"]:
        if message["role"] == "assistant":
            assistant(out, message)
        else:
            turn(out, message["role"], message["content"])
    return out
