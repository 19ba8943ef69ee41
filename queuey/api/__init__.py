"""The HTTP API, version 1, as types.

The web reads requests into them and answers with them, the client reads answers into them, and the OpenAPI document is
made of them. :mod:`queuey.web.fields` reads each field of a request as its type says. A bound that a setting may lower
is named by :func:`queuey.api.values.bounded`.
"""
