"""The tables of docs/api.md about fields that are not served: every field is sent. Those of "Fields that are refused" with values that
pass and one that does not; those of "Fields without effect" change no answer."""
import json
import pathlib
import re

import pytest

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "api.md"
UNLIKELY = {"x": 1}  # no field's neutral value
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}


def rows():
    """(table, field, the values that pass) of each field of the three tables."""
    section = DOCUMENT.read_text().split("## Fields that are refused\n")[1].split("\n## ")[0]
    table = None
    for line in section.splitlines():
        if not line.startswith("|") or line.startswith("|-"):
            continue
        fields, values = (cell.strip() for cell in line.strip("|").split("|"))
        if values == "may be":
            table = fields.replace("`", "")
            continue
        neutral = [json.loads(value) for value in re.findall(r"`([^`]+)`", values.split(";")[0])]
        for field in re.findall(r"`(\w+)`", fields):
            yield table, field, neutral


ROWS = list(rows())


def fields_without_effect():
    section = DOCUMENT.read_text().split("## Fields without effect\n")[1].split("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            yield from re.findall(r"`(\w+)`", line.split("|")[1])


def requests(table, field, value):
    if table == "on the OpenAI endpoints":
        return [("/v1/chat/completions", {**CHAT, field: value}), ("/v1/completions", {"prompt": "a", "max_tokens": 1, field: value})]
    if table == "on /generate":
        return [("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1}, field: value})]
    return [("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1, field: value}})]


def test_the_tables_are_read():
    assert {table for table, _, _ in ROWS} == {"on the OpenAI endpoints", "on /generate", "in sampling_params"}
    assert len(ROWS) > 70


@pytest.mark.parametrize("table, field, neutral", ROWS, ids=[f"{table}-{field}" for table, field, _ in ROWS])
def test_a_field_that_is_not_served_is_refused_by_name(server, table, field, neutral):
    for path, body in requests(table, field, UNLIKELY):
        status, _, answer = server.post(path, body)
        assert status == 400 and field in answer["error"]["message"], (path, answer)
    for value in [*neutral, None]:
        for path, body in requests(table, field, value):
            status, _, answer = server.post(path, body)
            assert status == 200, (path, value, answer)


def test_fields_without_effect_have_none(server):
    fields = list(fields_without_effect())
    assert len(fields) > 30 and not set(fields) & {field for _, field, _ in ROWS}
    chat, text = {**CHAT, "max_tokens": 4, "temperature": 0}, {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", text)):
        plain = server.post(path, body)[2]["choices"]
        for field in fields:
            for value in (1, UNLIKELY):
                status, _, answer = server.post(path, {**body, field: value})
                assert status == 200 and answer["choices"] == plain, (field, answer)


def test_tools_that_must_not_be_called_are_served(server):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    assert server.post("/v1/chat/completions", {**CHAT, "tools": [tool], "tool_choice": "none"})[0] == 200
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": "required"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}):
        status, _, answer = server.post("/v1/chat/completions", {**CHAT, "tools": [tool], **choice})
        assert status == 400 and ("tools" in answer["error"]["message"] or "tool_choice" in answer["error"]["message"]), (choice, answer)
