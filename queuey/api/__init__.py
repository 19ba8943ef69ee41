"""The HTTP API, version 1, as types.

The web layer decodes requests into these types and encodes answers from them, the client decodes answers into them, and
the OpenAPI document is generated from them. :mod:`queuey.web.fields` reads each field of a request by its type. Bounds
that a setting may lower are declared with :func:`queuey.api.values.bounded`.
"""
