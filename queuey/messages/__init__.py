"""Messages: post, read by time or early, stream, fetch and replace by name, and mark as read.

Each act has its use cases and its views: :mod:`.posts` and :mod:`.message_views`, :mod:`.names` and
:mod:`.name_views`, :mod:`.range_reads` and :mod:`.range_views`, :mod:`.streams` and :mod:`.stream_views`,
:mod:`.read_marks` and :mod:`.read_mark_views`. Streams read ranges again and again; :mod:`.ranges` computes both
without input or output. :mod:`.message_json` renders messages for all views.
"""
