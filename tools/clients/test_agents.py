"""Scripted coding agents: twenty turns with three tools, over each API that assistants speak.

SmolLM2 is no programmer, so every turn demands a call, and the script plays the tools. What must hold whatever the model
writes: every call has the name of a tool and arguments of its schema, each turn reads the turns before it from the prefix
cache, and two conversations whose turns alternate never see each other's words.
"""

import json
import secrets

import anthropic
import jsonschema
import pytest
from conftest import URL

TURNS = 20
# Tokens of a block of the prefix cache, and of the words before an answer, which a later prompt may split differently.
SLACK = 48

TEXT = {"type": "string", "maxLength": 24}
TOOLS = {
    "list_files": (
        "Lists the files of a folder.",
        {"type": "object", "properties": {"folder": TEXT}, "required": ["folder"], "additionalProperties": False},
    ),
    "read_file": (
        "Reads a line of a file.",
        {
            "type": "object",
            "properties": {"path": TEXT, "line": {"type": "integer", "minimum": 1, "maximum": 999}},
            "required": ["path", "line"],
            "additionalProperties": False,
        },
    ),
    "write_file": (
        "Replaces a file.",
        {
            "type": "object",
            "properties": {"path": TEXT, "text": TEXT},
            "required": ["path", "text"],
            "additionalProperties": False,
        },
    ),
}


class Project:
    """Files in memory, and what the agent was told about them."""

    def __init__(self):
        # Nobody else can know this word.
        self.secret = secrets.token_hex(6)
        self.files = {"main.py": f"key = '{self.secret}'"}
        self.system = f"You are a coding agent. The project is called {self.secret}. Use the tools."
        self.task = "Tidy up main.py."

    def run(self, name, arguments):
        if name == "list_files":
            return " ".join(sorted(self.files)[:8])
        if name == "read_file":
            return self.files.get(arguments["path"], f"{arguments['path']}: no such file; try main.py")
        self.files[arguments["path"]] = arguments["text"]
        return f"{len(arguments['text'])} characters written"


class Chat:
    """/v1/chat/completions"""

    def __init__(self, client, project):
        self.client, self.seed = client, 0
        self.tools = [
            {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
            for name, (about, schema) in TOOLS.items()
        ]
        self.messages = [{"role": "system", "content": project.system}, {"role": "user", "content": project.task}]

    def turn(self):
        self.seed += 1
        answer = self.client.chat.completions.create(
            model="smollm",
            messages=self.messages,
            tools=self.tools,
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0.7,
            seed=self.seed,
            max_tokens=400,
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls" and not choice.message.content
        self.messages.append(choice.message.model_dump(exclude_none=True))
        (call,) = choice.message.tool_calls
        self.call = call.id
        usage = answer.usage
        return (call.function.name, json.loads(call.function.arguments)), usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens

    def result(self, text):
        self.messages.append({"role": "tool", "tool_call_id": self.call, "content": text})


class Responses:
    """/v1/responses, which remembers the turns itself."""

    def __init__(self, client, project):
        self.client, self.previous = client, None
        self.tools = [
            {"type": "function", "name": name, "description": about, "parameters": schema}
            for name, (about, schema) in TOOLS.items()
        ]
        self.instructions, self.input = project.system, project.task

    def turn(self):
        answer = self.client.responses.create(
            model="smollm",
            # Instructions are not carried over from the previous response.
            instructions=self.instructions,
            input=self.input,
            previous_response_id=self.previous,
            tools=self.tools,
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0.7,
            max_output_tokens=400,
        )
        assert answer.status == "completed"
        (call,) = [item for item in answer.output if item.type == "function_call"]
        self.previous, self.call = answer.id, call.call_id
        usage = answer.usage
        return (call.name, json.loads(call.arguments)), usage.input_tokens, usage.input_tokens_details.cached_tokens

    def result(self, text):
        self.input = [{"type": "function_call_output", "call_id": self.call, "output": text}]


class Messages:
    """/v1/messages"""

    def __init__(self, client, project):
        self.client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=120)
        self.tools = [
            {"name": name, "description": about, "input_schema": schema} for name, (about, schema) in TOOLS.items()
        ]
        self.system = project.system
        self.messages = [{"role": "user", "content": project.task}]

    def turn(self):
        # Streamed, as assistants do.
        with self.client.messages.stream(
            model="smollm",
            system=self.system,
            messages=self.messages,
            tools=self.tools,
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            temperature=0.7,
            max_tokens=400,
        ) as stream:
            answer = stream.get_final_message()
        assert answer.stop_reason == "tool_use"
        (call,) = [block for block in answer.content if block.type == "tool_use"]
        self.call = call.id
        self.messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]})
        usage = answer.usage
        cached = usage.cache_read_input_tokens
        return (call.name, call.input), usage.input_tokens + cached, cached

    def result(self, text):
        block = {"type": "tool_result", "tool_use_id": self.call, "content": text}
        self.messages.append({"role": "user", "content": [block]})


class Agent:
    def __init__(self, api, client):
        self.project = Project()
        self.api = api(client, self.project)
        self.prompts, self.cached, self.words = [], [], []

    def turn(self):
        (name, arguments), prompt, cached = self.api.turn()
        jsonschema.validate(arguments, TOOLS[name][1])
        self.words.append(json.dumps(arguments))
        self.prompts.append(prompt)
        self.cached.append(cached)
        self.api.result(self.project.run(name, arguments))


@pytest.mark.parametrize("api", [Chat, Messages, Responses])
def test_twenty_turns_of_two_agents(client, api):
    agents = [Agent(api, client), Agent(api, client)]
    for _ in range(TURNS):
        for agent in agents:
            agent.turn()
    for agent, other in [agents, agents[::-1]]:
        # Nothing leaks from one conversation into the other.
        written = " ".join(agent.words) + " ".join(agent.project.files.values())
        assert other.project.secret not in written
        # The prompt grows by every turn, and all but the newest turn comes from the prefix cache.
        assert agent.prompts == sorted(set(agent.prompts))
        for before, cached, prompt in zip(agent.prompts, agent.cached[1:], agent.prompts[1:]):
            assert before - SLACK <= cached < prompt, (agent.prompts, agent.cached)
        assert agent.cached[-1] > agent.cached[1] > 0
    # The first prompts share only what comes before the projects' names.
    assert agents[1].cached[0] < agents[1].prompts[0]
