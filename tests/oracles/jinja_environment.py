"""Jinja2 set up as transformers sets it up for chat templates (python3-jinja2 3.1), with a fixed clock."""

import copy
import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1_700_000_000  # 2023-11-14 22:13:20 UTC


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(pattern):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(pattern)


def make_environment():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def render(template, context):
    """{"expected": text} or {"error": message}."""
    try:
        return {"expected": make_environment().from_string(template).render(**copy.deepcopy(context))}
    except Exception as error:  # every failure of the template is an expected error
        return {"error": f"{type(error).__name__}: {error}"[:200]}
