"""Chat templates: Jinja programs that come with the weights and lay messages out as the model was trained to read them.

They come from strangers, so they run in a sandbox: no attribute that reaches code, no writing to what they get.
Templates are written for transformers; what it gives them beyond plain Jinja they find here too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateError(ValueError):
    """The chat template is missing, or refused these messages. The message carries the template's words."""


class ChatTemplate:
    """A compiled template. Raises TemplateError for one that cannot be read."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda layout: datetime.now().astimezone().strftime(layout)
        # Jinja's own escapes what HTML would trip over.
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template cannot be read: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """Messages have a role, a content and whatever else the template knows; a field that is None is left out.
        Raises TemplateError."""
        given = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            return self._template.render(messages=given, tools=None, documents=None, **variables)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            # Not all that a template gets wrong is Jinja's to tell: a sum of words and numbers is Python's.
            raise TemplateError(f"the chat template refused the messages: {error}") from error


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is what it encloses."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def pick_template(given: Any) -> str | None:
    """tokenizer_config.json has one template or a list of named ones; the one for chats without tools is `default`."""
    if not isinstance(given, list):
        return given
    named = {str(item["name"]): str(item["template"]) for item in given}
    return named.get("default") or next(iter(named.values()), None)
