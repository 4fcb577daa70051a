"""The calculator agent with OpenAI's own library, by chat completions."""

import json
import os
import sys

from openai import OpenAI

TOOLS = {"multiply": lambda a, b: a * b, "add": lambda a, b: a + b}
NUMBER = {"type": "integer"}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
SCHEMAS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"{name} numbers", "parameters": PARAMETERS},
    }
    for name in TOOLS
]


def answer(messages):
    if "stream" not in sys.argv:
        made = client.chat.completions.create(model="policy", messages=messages, tools=SCHEMAS)
        return made.choices[0].message
    with client.chat.completions.stream(model="policy", messages=messages, tools=SCHEMAS) as stream:
        return stream.get_final_completion().choices[0].message


client = OpenAI()
task = json.loads(os.environ["TRINITY_TASK"])
messages = [{"role": "user", "content": task["prompt"]}]
said = answer(messages)
while said.tool_calls:
    messages.append(said.model_dump(exclude_none=True, exclude={"parsed"}))
    for call in said.tool_calls:
        result = TOOLS[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    said = answer(messages)
print("reward:", float("56095" in said.content))
