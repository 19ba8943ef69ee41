"""The HTTP engine in front of the use cases.

A request comes from a connection (``http``), waits for its place (``admission``), is routed and answered by the
:mod:`.gateway`, and is read by a view through :mod:`.requests`, :mod:`.fields` and :mod:`.validators`.
:mod:`.responses` and :mod:`.errors` make the answer. :mod:`.openapi` and :mod:`.parameters` describe both in the
OpenAPI document.
"""
