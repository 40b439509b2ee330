"""Checks the server against our OpenAPI document: Schemathesis generates valid and invalid requests
and validates the responses.

No undocumented status, no 5xx except 504, no response that violates its schema. `contract/` has the
configuration.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

URL = os.environ["SCONCE_SMALL_URL"]
HERE = Path(__file__).parent / "contract"

# The least number of requests that models served; otherwise the run would have checked errors only.
ANSWERED = {
    "POST /embed": 6,
    "POST /embed_all": 6,
    "POST /rerank": 6,
    "POST /similarity": 6,
    "POST /tokenize": 3,
    "POST /decode": 6,
    "POST /v1/embeddings": 6,
    "POST /v1/rerank": 3,
    "POST /v2/rerank": 3,
    "POST /v1/completions": 16,
    "POST /v1/chat/completions": 16,
    "POST /v1/messages": 3,
    "POST /v1/messages/count_tokens": 2,
    "POST /v1/responses": 3,
    "POST /v1/responses/input_tokens": 2,
    "POST /v2/embed": 2,
    "POST /score": 2,
    "POST /pooling": 3,
    "POST /api/chat": 3,
    "POST /api/generate": 3,
    "POST /api/embed": 3,
}


def test_contract(tmp_path):
    tally = tmp_path / "tally.json"
    command = [Path(sys.executable).with_name("st"), "--config-file", "schemathesis.toml", "run", URL + "/openapi.json"]
    ran = subprocess.run(command, cwd=HERE, env={**os.environ, "SCONCE_TALLY": str(tally)}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    answers = json.loads(tally.read_text())
    few = {name: answers.get(name) for name, least in ANSWERED.items() if answers.get(name, {}).get("200", 0) < least}
    assert not few, few
