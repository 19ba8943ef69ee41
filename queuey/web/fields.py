"""Reads bodies and queries into structs of :mod:`queuey.api`: each field by its type, numbers also from text.

All bad fields are reported at once. A field whose type has several forms, or an inner structure, is passed on as it
came: the view reads it further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from queuey.runtime.limits import Limits
from queuey.web import validators
from queuey.web.requests import Request, read_body, read_query, record_unknown_names
from queuey.web.validators import Errors, read_object

S = TypeVar("S", bound=msgspec.Struct)
Parse = Callable[[object], Any]


class Fields(Generic[S]):
    """Reads a struct from the fields of requests, within the limits in force."""

    def __init__(self, kind: type[S], limits: Limits) -> None:
        self._kind = kind
        self._max_body = limits.max_body
        struct = inspect.type_info(kind)
        assert isinstance(struct, inspect.StructType)  # noqa: S101
        self.names = frozenset(f.encode_name for f in struct.fields)
        self._parsers = {f.encode_name: (f.name, _make_parser(f.type, limits)) for f in struct.fields}
        self._inner = {f.encode_name: inner for f in struct.fields if (inner := _find_inner(f.type)) is not None}
        self._required = {f.encode_name: f.name for f in struct.fields if f.required}

    def read(self, given: Mapping[str, object], errors: Errors, request: Request | None = None) -> S:
        """Reads the fields. A field that is None or blank is absent; bad and missing ones are None, and in ``errors``.

        Unknown fields are ignored, and recorded in ``request`` if this is its body.
        """
        if request is not None and not self.names.issuperset(given):
            self.record_unknown_names(request, given)
        values: dict[str, Any] = {}
        for name, value in given.items():
            if value is None or value == "" or (field := self._parsers.get(name)) is None:
                continue
            attribute, parse = field
            try:
                values[attribute] = value if parse is None else parse(value)
            except ValueError as error:
                values[attribute] = None
                errors[name] = str(error)
        for name, attribute in self._required.items():
            if attribute not in values:
                errors[name] = validators.REQUIRED
                values[attribute] = None
        return self._kind(**values)

    def query(self, request: Request) -> S:
        """Reads the query of a request.

        Raises:
            InvalidRequest: Some fields are bad or missing; it names all of them.
        """
        errors = Errors()
        values = self.read(read_query(request, self.names), errors)
        errors.check()
        return values

    def json(self, request: Request, default: bytes = b"") -> dict[str, Any]:
        """Returns the JSON object in the body of a request, and records its unknown fields in the request.

        An empty body is read as ``default``.
        """
        values = read_object(read_body(request, self._max_body) or default)
        if self._inner or not self.names.issuperset(values):
            self.record_unknown_names(request, values)
        return values

    def body(self, request: Request, errors: Errors) -> S:
        return self.read(self.json(request), errors)

    def record_unknown_names(self, request: Request, values: Mapping[str, object]) -> None:
        items = ((self.names, values), *self._inner_objects(values))
        if unknown := dict.fromkeys(name for names, item in items for name in item if name not in names):
            allowed = self.names.union(*(names for names, _ in self._inner.values()))
            record_unknown_names(request, list(unknown), "field", "body", allowed)

    def _inner_objects(self, values: Mapping[str, object]) -> Iterator[tuple[frozenset[str], Mapping[str, object]]]:
        for field, (names, is_map) in self._inner.items():
            value = values.get(field)
            if is_map and isinstance(value, dict):
                value = list(value.values())
            items = value if isinstance(value, list) else [value]
            yield from ((names, item) for item in items if isinstance(item, dict))


def _unwrap(kind: inspect.Type) -> tuple[inspect.Type, dict[str, Any]]:
    metadata: dict[str, Any] = {}
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            metadata |= (kind.extra_json_schema or {}) | (kind.extra or {})
            kind = kind.type
        else:
            forms = [t for t in kind.types if not isinstance(t, inspect.NoneType)]
            kind = forms[0] if len(forms) == 1 else inspect.AnyType()
    return inspect.AnyType() if metadata.get("raw") else kind, metadata


def _find_inner(kind: inspect.Type) -> tuple[frozenset[str], bool] | None:
    kind, _ = _unwrap(kind)
    is_map = isinstance(kind, inspect.DictType)
    item = kind.value_type if isinstance(kind, inspect.DictType) else getattr(kind, "item_type", kind)
    if not isinstance(item, inspect.StructType):
        return None
    return frozenset(f.encode_name for f in item.fields), is_map


def _make_parser(kind: inspect.Type, limits: Limits) -> Parse | None:
    kind, metadata = _unwrap(kind)
    bounds = _find_bounds(kind, metadata.get("x-limit"), limits)
    match kind:
        case inspect.IntType():
            parse: Parse = partial(validators.parse_integer, **bounds)
        case inspect.FloatType():
            parse = partial(validators.parse_decimal, **bounds)
        case inspect.BoolType():
            parse = validators.parse_true_or_false if metadata.get("exact") else validators.parse_boolean
        case inspect.StrType() if "enum" in metadata:
            parse = partial(validators.parse_choice, choices=tuple(metadata["enum"]))
        case inspect.StrType():
            parse = partial(
                validators.parse_printable_text if metadata.get("line") else validators.parse_text, **bounds
            )
        case inspect.ListType():
            parse = partial(validators.parse_list, **bounds)
        case _:
            return None
    return parse


def _find_bounds(kind: inspect.Type, limit: str | None, limits: Limits) -> dict[str, Any]:
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return {"minimum": kind.ge or 0, "maximum": getattr(limits, limit) if limit else kind.le}
    if isinstance(kind, inspect.StrType | inspect.ListType):
        return {"max_length": getattr(limits, limit) if limit else kind.max_length}
    return {}
