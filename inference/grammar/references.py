"""Where references inside a schema lead, and small questions to a schema's tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote


class Unresolved(ValueError):
    """The reference leads out of the schema or nowhere. The message names it."""


def escaped(step: str) -> str:
    """A step of a JSON pointer (RFC 6901)."""
    return step.replace("~", "~0").replace("/", "~1")


def resolve(reference: Any, root: Any) -> tuple[str, Any]:
    """The JSON pointer of a local reference (`#`, `#/a/b`, `#anchor`, the same behind the root's `$id`) and its target.

    Raises Unresolved.
    """
    if not isinstance(reference, str):
        raise Unresolved(f"{reference!r} is no reference: it must be text")
    own = root.get("$id") if isinstance(root, Mapping) else None
    local = reference.removeprefix(own.removesuffix("#")) if isinstance(own, str) and own else reference
    fragment = unquote(local.removeprefix("#"))
    if local and not local.startswith("#"):
        raise Unresolved(f"{reference!r} leads out: only references inside the schema are followed, as #/$defs/address")
    if fragment and not fragment.startswith("/"):
        found = next((place for place in places(root) if _is_anchor(place[1], fragment)), None)
        if found is None:
            raise Unresolved(f"{reference!r} leads nowhere: no $anchor has this name")
        return found
    target, pointer = root, "#"
    for step in fragment.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            target = target[int(name)] if isinstance(target, list) else target[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise Unresolved(f"{reference!r} leads nowhere: there is no {name!r} in {pointer}") from None
        pointer += f"/{escaped(name)}"
    return pointer, target


def followed(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """What a schema that is nothing but a reference to one of `definitions` (`#/$defs/name`) leads to."""
    for _ in range(len(definitions)):
        if not isinstance(schema, Mapping) or schema.keys() != {"$ref"}:
            break
        schema = definitions[schema["$ref"].removeprefix("#/$defs/")]
    return schema


def mentions(schema: Any, key: str) -> bool:
    """Whether any object of the tree has this key."""
    return any(isinstance(place, Mapping) and key in place for _, place in places(schema))


def _is_anchor(place: Any, name: str) -> bool:
    return isinstance(place, Mapping) and (
        name in (place.get("$anchor"), place.get("$dynamicAnchor")) or place.get("$id") == f"#{name}"
    )


def places(root: Any) -> Iterator[tuple[str, Any]]:
    """Every value of the tree with its JSON pointer."""
    waiting = [("#", root)]
    while waiting:
        pointer, place = waiting.pop()
        yield pointer, place
        steps = place.items() if isinstance(place, Mapping) else enumerate(place) if isinstance(place, list) else ()
        waiting += [(f"{pointer}/{escaped(str(step))}", value) for step, value in steps]
