"""docs/api-examples.md: every request is sent, and its answer has the members and types that the page shows."""
import json
import pathlib
import re

import pytest

from harness import DEMO

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "api-examples.md"
FREE = {"stages", "replies", "internal_states"}  # lists of what the placement has


def examples():
    for section in DOCUMENT.read_text().split("\n## ")[1:]:
        found = re.match(r"`(GET|POST) (\S+)`", section)
        blocks = [json.loads(block.replace("/models/demo", str(DEMO))) for block in re.findall(r"```json\n(.*?)\n```", section, re.S)]
        texts = re.findall(r"```text\n(.*?)\n```", section, re.S)
        if found:
            yield found[1], found[2], (blocks[0] if len(blocks) == 2 else None), (texts or blocks)[-1]


def shape(value, name=""):
    if isinstance(value, dict):
        return {key: shape(inner, key) for key, inner in value.items()} if name != "top_logprobs" else "dict"
    if isinstance(value, list):
        return [shape(value[0], name)] if value and name not in FREE else ["anything"]
    return "number" if type(value) in (int, float) else type(value).__name__


def has_lines(text, shown):
    """Whether each line that is shown begins a line of the text, whatever its numbers are."""
    patterns = [r"[\d.e+-]+".join(map(re.escape, re.split(r"(?<![\w.])\d[\d.]*", line))) for line in shown.splitlines()]
    return all(re.search("^" + pattern, text, re.M) for pattern in patterns)


EXAMPLES = list(examples())


def test_the_page_has_the_endpoints():
    paths = {path for _, path, _, _ in EXAMPLES}
    assert {"/v1/chat/completions", "/v1/responses", "/v1/responses/input_tokens", "/v1/messages", "/v1/messages/count_tokens", "/v1/completions", "/generate", "/tokenize", "/detokenize", "/v1/models", "/v1/pipeline", "/flush_cache", "/ready",
            "/update_weights_from_disk", "/start_profile", "/stop_profile", "/metrics", "/health"} <= paths
    assert ("GET", "/v1/pipeline") in {(method, path) for method, path, _, _ in EXAMPLES}


@pytest.mark.parametrize("method, path, body, answer", EXAMPLES, ids=[f"{method} {path}" for method, path, _, _ in EXAMPLES])
def test_an_example_is_answered_as_shown(server, method, path, body, answer):
    status, _, seen = server.request(method, path, body)
    assert status == 200 and (has_lines(seen, answer) if isinstance(answer, str) else shape(seen) == shape(answer)), seen
    if path == "/stop_profile":  # the server leaves traces to who asked for them
        trace = pathlib.Path(seen["replies"][0]["message"])
        trace.unlink()
        trace.parent.rmdir()
