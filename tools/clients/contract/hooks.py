"""What Schemathesis is told beside our OpenAPI document, so that its requests reach the models and stay small.

The document is narrowed for requests and never for answers, but for their statuses: ranges (`4XX`) and 500 are taken out, so that
every status is one that is named, and none is a bug.
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

# Two of four requests go to a model that can answer them: by its name, and by none.
MODELS = {
    "smollm": ("ChatRequest", "CompletionRequest"),
    "reranker": ("RerankRequest", "TeiRerankRequest"),
    "minilm": ("EmbedRequest", "EmbedAllRequest", "EmbeddingRequest", "SimilarityRequest", "TokenizeRequest", "DecodeRequest"),
}
OTHER = {"smollm": "minilm", "reranker": "smollm", "minilm": "reranker"}

# The room of numbers: what the server takes, or less where more would take long.
NUMBERS = {
    "max_tokens": (1, 4),
    "max_completion_tokens": (1, 4),
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
}
# Refused whatever they hold; and the names of prompts, of which these models have none.
NEVER = ("functions", "function_call", "suffix", "modalities", "prompt_name")
# What requests alone are made of; where those hold lists of tokens; and which of them must not be empty.
PARTS = ("ClassifyInput", "Ids", "Inputs", "Item", "MessageContent", "OneOrMore", "PredictInputs", "Prompt", "SimilarityInputs",
         "StructuredOutputs", "Texts")
TOKENS = ("Ids", "Inputs", "Item", "Prompt")
FILLED = ("OneOrMore", "Prompt", "StructuredOutputs")

# The document as it came, and the answers so far: by operation, status.
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
        if name.endswith("Request"):
            narrow(schema, name)
    talk(schemas, answers)
    raw_schema["paths"]["/v1/models/{id}"]["get"]["parameters"][0]["schema"] = {"enum": [*MODELS, "nobody"]}
    for _, operation in operations(raw_schema):
        for status in [s for s in operation["responses"] if s == "500" or not s.isdigit()]:
            del operation["responses"][status]
        # Of an event Schemathesis would judge the frame; `stream` judges what is in it.
        operation["responses"].get("200", {}).get("content", {}).get("text/event-stream", {}).pop("schema", None)


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def narrow(schema, name):
    """Few and small values, and models that are there."""
    fields = schema["properties"]
    for field, (least, most) in NUMBERS.items():
        if field in fields:
            fields[field] |= {"minimum": least, "maximum": most}
    for field in NEVER:
        fields.pop(field, None)
    for model, names in MODELS.items():
        if name in names:
            fields["model"] = {"enum": [model, None, OTHER[model], "nobody"]}
    if "logit_bias" in fields:
        bias = {"type": "number", "minimum": -100, "maximum": 100}
        fields["logit_bias"] |= {"maxProperties": 3, "propertyNames": {"pattern": "^[1-9][0-9]{0,3}$"}, "additionalProperties": bias}
    if name == "CompletionRequest":
        fields["logprobs"]["maximum"] = 20


def short(schema, name):
    """Lists that are neither empty nor long, of ids that every vocabulary has."""
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
    """Conversations that a template can write, and functions with a name."""
    assert not any(f'schemas/{name}"' in answers for name in ("ChatMessage", "Function"))
    message = schemas["ChatMessage"]
    message["required"] = ["role", "content"]
    message["properties"]["role"] = {"enum": ["system", "user", "assistant"]}
    message["properties"]["content"] = {"$ref": "#/components/schemas/MessageContent"}
    for field in ("tool_calls", "tool_call_id"):
        message["properties"].pop(field)
    schemas["Function"]["properties"]["name"]["pattern"] = "^[a-z]{1,9}$"


@schemathesis.hook
def map_case(context, case):
    """Of fields that exclude each other one stays; and no answer is long."""
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
    return case


@schemathesis.hook
def filter_case(context, case):
    """The models that the other requests need stay."""
    body = case.body if isinstance(case.body, dict) else {}
    return case.operation.path != "/v1/models/unload" or body.get("model") not in list(MODELS)


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """A request that is wrong by the narrowed document alone may be answered."""
    if not isinstance(failure, AcceptedNegativeData) or not isinstance(case.body, dict):
        return True
    # An empty list is two of the things that `inputs` is one of; that makes it no worse.
    document = json.loads(json.dumps(given).replace('"oneOf"', '"anyOf"'))
    operation = dict(operations(document))[case.operation.label]
    return not valid(document, operation["requestBody"]["content"]["application/json"]["schema"], case.body)


def valid(document, schema, said):
    return jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}).is_valid(said)


@schemathesis.check
def stream(context, response, case):
    """Every event is what the document says, and the last is `[DONE]`."""
    if not response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        return
    operation = dict(operations(given))[case.operation.label]
    schema = operation["responses"]["200"]["content"]["text/event-stream"]["schema"]
    events = [e for e in response.content.decode().split("\n\n") if e and not e.startswith(":")]
    assert events[-1] == "data: [DONE]", f"the last event is {events[-1]}"
    for event in events[:-1]:
        said = json.loads(event.removeprefix("data: "))
        assert "error" in said or valid(given, schema, said), f"not as documented: {event}"


@schemathesis.hook
def after_call(context, case, response):
    tally[case.operation.label][response.status_code] += 1


@atexit.register
def tell():
    """For test_contract.py, which asks whether the models were reached at all."""
    if path := os.environ.get("SCONCE_TALLY"):
        Path(path).write_text(json.dumps(tally))
