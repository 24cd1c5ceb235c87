"""MiMo V2.6's chat format as segments."""
import json

from segments import CONTEXT, GIVEN, REPLY, Segments


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
    out.control("<tool_call>", REPLY)
    parameters = "".join(f"<parameter={k}>{v if isinstance(v, str) else spaced(v)}</parameter>"
                         for k, v in function["arguments"].items())
    out.text(f"<function={function['name']}>{parameters}</function>", REPLY)
    out.control("</tool_call>", REPLY)


def assistant(out, message):
    out.control("<|im_start|>")
    out.text("assistant\n")
    thought = message.get("reasoning_content")
    # Without thinking the prompt has both: whoever thinks must not learn that one follows the other.
    out.control("<think>", CONTEXT if thought is None else REPLY)
    out.text(thought, REPLY)
    out.control("</think>", GIVEN if thought is None else REPLY)
    out.text(message["content"], REPLY)
    for c in message.get("tool_calls", ()):
        call(out, c["function"])
    out.control("<|im_end|>", REPLY)


def render(conversation):
    out = Segments(joined=True)
    if conversation.get("tools"):
        declare(out, conversation["tools"])
    for message in conversation["messages"]:
        if message["role"] == "assistant":
            assistant(out, message)
        else:
            turn(out, message["role"], message["content"])
    return out
