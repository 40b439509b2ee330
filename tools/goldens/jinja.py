"""Computes transformers' outputs for the chat templates that crates/jinja is tested with.

    python tools/goldens/jinja.py [--check] [FILE]

The file has inputs and outputs. A new case is a line in its `cases`, without `want`:

    {"name": "..", "source": "..", "messages": 1, "tools": null, "agp": true, "extra": {}}

`messages` and `tools` are indexes, from 0, into the file's lists of those names; null means no
tools. `agp` is add_generation_prompt, `extra` has further variables of the template. `strftime_now`
formats the file's `unix`. If transformers fails, `want` becomes null.
"""

import argparse
import json
import os
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jinja2
import transformers
from transformers.utils import chat_template_utils

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "crates" / "jinja" / "tests" / "cases.json"
# The tokens that the crate's own test passes.
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
LISTS = ["messages", "tools", "cases"]
INPUTS = ["name", "source", "messages", "tools", "agp", "extra"]
# Variables that apply_chat_template already passes.
RESERVED = ["messages", "tools", "documents", "add_generation_prompt"]


def require_sound(file: dict[str, Any]) -> None:
    """Checks the inputs, because a mistake there would look like a template that transformers
    cannot render."""
    names = [case.get("name") for case in file["cases"]]
    for case, name in zip(file["cases"], names):
        if set(case) - {"want"} != set(INPUTS):
            sys.exit(f"{name}: a case has {', '.join(INPUTS)}, and want when it is filled in")
        if names.count(name) > 1:
            sys.exit(f"{name}: two cases have this name")
        if case["messages"] not in range(len(file["messages"])):
            sys.exit(f"{name}: there are no messages {case['messages']}")
        if case["tools"] not in [None, *range(len(file["tools"]))]:
            sys.exit(f"{name}: there are no tools {case['tools']}")
        if given := [key for key in RESERVED if key in case["extra"]]:
            sys.exit(f"{name}: {', '.join(given)} cannot be extra")


def freeze(unix: int) -> None:
    """Fixes the clock, so that a template prints the same date every day and in every time zone."""
    # A datetime without a zone formats as UTC, but `%s` uses the machine's zone.
    os.environ["TZ"] = "UTC"
    time.tzset()
    moment = datetime.fromtimestamp(unix, timezone.utc).replace(tzinfo=None)

    class Frozen(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return moment

    # `strftime_now` looks this name up at every call. If a later version reads the time
    # differently, the goldens would silently change with the date: so check it here.
    chat_template_utils.datetime = Frozen
    told = chat_template_utils._compile_jinja_template("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}")
    if told.render() != str(moment):
        sys.exit("strftime_now of this transformers is not frozen; see freeze")


def render(case: dict[str, Any], file: dict[str, Any]) -> str | None:
    """The output of `apply_chat_template`, which needs nothing but `TOKENS` from its tokenizer."""
    tools = None if case["tools"] is None else file["tools"][case["tools"]]
    try:
        [text], _ = chat_template_utils.render_jinja_template(
            conversations=[file["messages"][case["messages"]]],
            tools=tools,
            chat_template=case["source"],
            add_generation_prompt=case["agp"],
            **{**TOKENS, **case["extra"]},
        )
    except ImportError:
        # A missing or outdated package says nothing about the template.
        raise
    except Exception:
        # Not only Jinja's errors: a faulty template can raise any Python exception.
        return None
    return text


def laid_out(file: dict[str, Any]) -> str:
    """One entry per line, so that a diff shows which case changed; text is not escaped."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    fields = [f"{line(key)}: {line(value)}" for key, value in file.items() if key not in LISTS]
    parts = [", ".join(fields)]
    for key in LISTS:
        items = ",\n".join(line(item) for item in file[key])
        parts.append(f"{line(key)}: [\n{items}\n]")
    return "{\n" + ",\n".join(parts) + "}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if an answer is another"
    )
    parser.add_argument("file", type=Path, nargs="?", default=CASES, help=f"default: {CASES}")
    args = parser.parse_args()

    file = json.loads(args.file.read_text(encoding="utf-8"))
    require_sound(file)
    freeze(file["unix"])
    made_by = f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}"
    file["made_by"] = f"{made_by}; null where these fail"

    other = 0
    for case in file["cases"]:
        text = render(case, file)
        # A new case has no output yet, which differs from null.
        if "want" not in case:
            print(f"{case['name']}: new, {text!r}")
        elif text != case["want"]:
            print(f"{case['name']}: {text!r}, not {case['want']!r}")
        else:
            continue
        other += 1
        case["want"] = text

    print(f"{made_by}: {other} of {len(file['cases'])} cases have another answer")
    if not args.check:
        args.file.write_text(laid_out(file), encoding="utf-8", newline="\n")
    elif other > 0:
        sys.exit(1)


if __name__ == "__main__":
    main()
