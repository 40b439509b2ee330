"""Schemathesis hooks: constrain the generated requests, so that they reach the models and stay
small.

The hooks narrow the schemas of requests, never those of responses. Of the statuses they remove
ranges (`4XX`) and 500, so that only named statuses are allowed and none of them is a bug.
"""

import atexit
import collections
import copy
import json
import os
from pathlib import Path

import jsonschema_rs
import schemathesis
from schemathesis.core.failures import AcceptedNegativeData

# Half of the requests go to a model that can serve them, by name or by default.
MODELS = {
    "smollm": ("ChatRequest", "CompletionRequest", "MessagesRequest", "ResponseRequest", "OllamaChatRequest", "OllamaGenerateRequest"),
    "reranker": ("RerankRequest", "TeiRerankRequest", "ScoreRequest"),
    "minilm": ("EmbedRequest", "EmbedAllRequest", "EmbeddingRequest", "SimilarityRequest", "TokenizeRequest", "DecodeRequest",
               "OllamaEmbedRequest", "OllamaEmbeddingsRequest", "CohereEmbedRequest", "PoolingRequest"),
}
OTHER = {"smollm": "minilm", "reranker": "smollm", "minilm": "reranker"}

# The ranges of numbers: what the server accepts, or less where more would take long.
NUMBERS = {
    "max_tokens": (1, 4),
    "max_completion_tokens": (1, 4),
    "max_output_tokens": (1, 4),
    "n": (1, 2),
    "temperature": (0, 2),
    "top_p": (0.1, 1),
    "top_k": (-1, 50),
    "min_p": (0, 1),
    "repetition_penalty": (0.5, 2),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "top_logprobs": (0, 20),
    "dimensions": (1, 384),
    "top_n": (1, 8),
    "repeat_penalty": (0.5, 2),
    "num_predict": (1, 4),
    "num_ctx": (8, 64),
    "output_dimension": (1, 384),
    "truncate_prompt_tokens": (-1, 64),
}
# Fields that are always refused, prompt names, which these models do not have, and times after which
# a model is unloaded that other requests need.
NEVER = ("functions", "function_call", "suffix", "modalities", "prompt_name", "template", "context", "images", "keep_alive")
# Fields of one request that are always refused, or that name what is not there.
REFUSED = {
    "MessagesRequest": ("container", "mcp_servers"),
    "ResponseRequest": ("background", "conversation", "prompt", "previous_response_id"),
}
# The paths of messages and responses, whose streams have named events, and the last of these events.
MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")
RESPONSES = ("/v1/responses", "/v1/responses/input_tokens")
LAST = ("message_stop", "response.completed", "response.incomplete", "response.failed", "error")
# Paths that render or count a prompt, and do not read what a request says about its answer.
COUNTING = ("/apply-template", "/chat/completions/input_tokens", "/v1/chat/completions/input_tokens", "/v1/responses/input_tokens")
# Schemas that only requests use; which of them have lists of tokens; and which of these must not be
# empty.
PARTS = ("ClassifyInput", "Ids", "Inputs", "Item", "MessageContent", "OneOrMore", "PredictInputs", "Prompt", "SimilarityInputs",
         "StructuredOutputs", "Texts", "OllamaEmbedInput", "OllamaOptions")
TOKENS = ("Ids", "Inputs", "Item", "Prompt")
FILLED = ("OneOrMore", "Prompt", "StructuredOutputs")

# The original document, and the responses so far by operation and status.
given = {}
tally = collections.defaultdict(collections.Counter)


@schemathesis.hook
def before_load_schema(context, raw_schema):
    given.update(copy.deepcopy(raw_schema))
    schemas = raw_schema["components"]["schemas"]
    answers = json.dumps([operation["responses"] for _, operation in operations(raw_schema)])
    for name, schema in schemas.items():
        if name.endswith("Request") or name in PARTS:
            assert f'schemas/{name}"' not in answers, f"{name} judges answers, and must not be narrowed"
            short(schema, name)
        if name.endswith("Request") or name == "OllamaOptions":
            narrow(schema, name)
    talk(schemas, answers)
    converse(schemas, answers)
    raw_schema["paths"]["/v1/models/{id}"]["get"]["parameters"][0]["schema"] = {"enum": [*MODELS, "nobody"]}
    for _, operation in operations(raw_schema):
        for status in [s for s in operation["responses"] if s == "500" or not s.isdigit()]:
            del operation["responses"][status]
        # Schemathesis would check the frame of a stream; `stream` checks its content.
        for kind in ("text/event-stream", "application/x-ndjson"):
            operation["responses"].get("200", {}).get("content", {}).get(kind, {}).pop("schema", None)


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def narrow(schema, name):
    """Few and small values, and names of loaded models."""
    for part in schema.get("allOf", ()):
        narrow(part, name)
    fields = schema.get("properties", {})
    for field, (least, most) in NUMBERS.items():
        if field in fields:
            fields[field] |= {"minimum": least, "maximum": most}
    for field in (*NEVER, *REFUSED.get(name, ())):
        fields.pop(field, None)
    for model, names in MODELS.items():
        if name in names:
            fields["model"] = {"enum": [model, None, OTHER[model], "nobody"]}
    if "logit_bias" in fields:
        bias = {"type": "number", "minimum": -100, "maximum": 100}
        fields["logit_bias"] |= {"maxProperties": 3, "propertyNames": {"pattern": "^[1-9][0-9]{0,3}$"}, "additionalProperties": bias}
    if name == "CompletionRequest":
        fields["logprobs"]["maximum"] = 20


def converse(schemas, answers):
    """Conversations of messages and responses that end with the user, and tools with a name."""
    parts = ("AnthropicInputMessage", "AnthropicTextBlock", "AnthropicTool")
    assert not any(f'schemas/{name}"' in answers for name in parts)
    name, schema = {"pattern": "^[a-z]{1,9}$"}, {"type": "object"}
    said = {"type": "string", "minLength": 1}
    message = schemas["AnthropicInputMessage"]["properties"]
    message["role"] = {"enum": ["user"]}
    message["content"] = {"$ref": "#/components/schemas/AnthropicTextContent"}
    schemas["AnthropicTextBlock"]["properties"]["type"] = {"enum": ["text"]}
    tool = schemas["AnthropicTool"]["properties"]
    tool["name"] |= name
    tool.pop("type")
    schemas["AnthropicTool"]["required"] = ["name", "input_schema"]
    fields = schemas["MessagesRequest"]["properties"]
    fields["thinking"] = {"enum": [None, {"type": "disabled"}, {"type": "adaptive"}]}
    fields["tool_choice"] = {"enum": [None, {"type": "auto"}, {"type": "any"}, {"type": "none"}]}
    fields["stop_sequences"]["items"] = said
    fields = schemas["ResponseRequest"]["properties"]
    item = {"type": "object", "properties": {"role": {"enum": ["user", "system"]}, "content": said}, "required": ["role", "content"]}
    fields["input"] = {"anyOf": [said, {"type": "array", "items": item, "minItems": 1, "maxItems": 4}]}
    properties = {"type": {"enum": ["function"]}, "name": {"type": "string", **name}, "parameters": schema}
    tool = {"type": "object", "properties": properties, "required": ["type", "name"]}
    fields["tools"] = {"type": ["array", "null"], "items": tool, "minItems": 1, "maxItems": 4}
    fields["tool_choice"] = {"enum": [None, "none", "auto", "required"]}
    fields["metadata"]["maxProperties"] = 4


def short(schema, name):
    """Lists that are neither empty nor long, with ids that are in every vocabulary."""
    if isinstance(schema, dict):
        kind = schema.get("type", ())
        if "array" in kind:
            schema |= {"minItems": 1, "maxItems": 4}
        if kind == "integer" and name in TOKENS:
            schema["maximum"] = 999
        if "string" in kind and name in FILLED:
            schema["minLength"] = 1
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        short(each, name)


def talk(schemas, answers):
    """Messages that a chat template can render, and tools with a name."""
    assert not any(f'schemas/{name}"' in answers for name in ("ChatMessage", "Function", "OllamaMessage"))
    message = schemas["ChatMessage"]
    message["required"] = ["role", "content"]
    message["properties"]["role"] = {"enum": ["system", "user", "assistant"]}
    message["properties"]["content"] = {"$ref": "#/components/schemas/MessageContent"}
    for field in ("tool_calls", "tool_call_id"):
        message["properties"].pop(field)
    message = schemas["OllamaMessage"]
    message["required"] = ["role", "content"]
    message["properties"] = {"role": {"enum": ["system", "user", "assistant"]}, "content": {"type": "string"}}
    schemas["Function"]["properties"]["name"]["pattern"] = "^[a-z]{1,9}$"


@schemathesis.hook
def map_case(context, case):
    """Keeps one of mutually exclusive fields, and bounds the length of answers."""
    path, body = case.operation.path, case.body
    if not isinstance(body, dict):
        return case
    if path in ("/v1/chat/completions", "/v1/completions"):
        if body.get("stream") is not True:
            body.pop("stream_options", None)
        if not body.get("tools"):
            body.pop("tool_choice", None)
        if body.get("response_format") or body.get("tools"):
            body.pop("structured_outputs", None)
        if path == "/v1/chat/completions" and body.get("logprobs") is not True:
            body.pop("top_logprobs", None)
        body.pop("best_of", None)
        if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
            body["max_tokens"] = 4
    if path in (*MESSAGES, *RESPONSES) and not body.get("tools"):
        body.pop("tool_choice", None)
    if path == "/v1/messages" and body.get("max_tokens") is None:
        body["max_tokens"] = 4
    if path == "/v1/responses" and body.get("max_output_tokens") is None:
        body["max_output_tokens"] = 4
    if path in ("/api/chat", "/api/generate"):
        if isinstance(options := body.get("options") or {}, dict):
            body["options"] = {"num_predict": 4, **{name: value for name, value in options.items() if value is not None}}
        if body.get("logprobs") is not True:
            body.pop("top_logprobs", None)
    if path in ("/score", "/v1/score"):
        sides = (("text_1", "queries", "data_1"), ("text_2", "documents", "items", "data_2"))
        for names in sides:
            for name in [name for name in names if body.get(name) is not None][1:]:
                body.pop(name)
    if path == "/v2/embed":
        for name in [name for name in ("texts", "images", "inputs") if body.get(name) is not None][1:]:
            body.pop(name)
    return case


@schemathesis.hook
def filter_case(context, case):
    """Never unloads or deletes a model that other requests need."""
    body = case.body if isinstance(case.body, dict) else {}
    named = any(body.get(field) in list(MODELS) for field in ("model", "name"))
    return case.operation.path not in ("/v1/models/unload", "/api/delete") or not named


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Accepts success for a request that is invalid only by the narrowed document."""
    if not isinstance(failure, AcceptedNegativeData) or not isinstance(case.body, dict):
        return True
    # An empty list matches two alternatives of `inputs` (oneOf), which does not make it invalid.
    document = json.loads(json.dumps(given).replace('"oneOf"', '"anyOf"'))
    operation = dict(operations(document))[case.operation.label]
    if case.operation.path in COUNTING:
        return False
    return not valid(document, operation["requestBody"]["content"]["application/json"]["schema"], unlisted(case.body))


def unlisted(said):
    """`{}` in the place of lists of nulls: serde also reads an object from the list of its values."""
    if isinstance(said, dict):
        return {name: unlisted(value) for name, value in said.items()}
    if isinstance(said, list):
        return [unlisted(value) for value in said] if any(value is not None for value in said) or not said else {}
    return said


def valid(document, schema, said):
    return jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}).is_valid(said)


@schemathesis.check
def stream(context, response, case):
    """Checks that every event matches its schema and that the last one ends the stream; or every line."""
    if response.headers.get("content-type", [""])[0].startswith("application/x-ndjson"):
        operation = dict(operations(given))[case.operation.label]
        schema = operation["responses"]["200"]["content"]["application/x-ndjson"]["schema"]
        for line in response.content.decode().splitlines():
            said = json.loads(line)
            assert "error" in said or valid(given, schema, said), f"not as documented: {line}"
        return
    if not response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        return
    operation = dict(operations(given))[case.operation.label]
    schema = operation["responses"]["200"]["content"]["text/event-stream"]["schema"]
    events = [e for e in response.content.decode().split("\n\n") if e and not e.startswith(":")]
    if case.operation.path in (*MESSAGES, *RESPONSES):
        named = [event.partition("\n") for event in events]
        assert all(name == f"event: {json.loads(data.removeprefix('data: '))['type']}" for name, _, data in named), events
        assert named[-1][0].removeprefix("event: ") in LAST, f"the last event is {events[-1]}"
        events = [data for _, _, data in named]
    else:
        assert events.pop() == "data: [DONE]", f"the last event is not [DONE]: {events}"
    for event in events:
        said = json.loads(event.removeprefix("data: "))
        assert "error" in said or valid(given, schema, said), f"not as documented: {event}"


@schemathesis.hook
def after_call(context, case, response):
    tally[case.operation.label][response.status_code] += 1


@atexit.register
def tell():
    """For test_contract.py, which checks that requests reached the models."""
    if path := os.environ.get("SCONCE_TALLY"):
        Path(path).write_text(json.dumps(tally))
