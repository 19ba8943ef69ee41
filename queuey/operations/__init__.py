"""What operators ask: why a message is not delivered, what happened when, metrics and health.

Use cases: :mod:`.explanations`, :mod:`.message_search`, :mod:`.redrive`, :mod:`.audit_log` and :mod:`.queue_activity`,
for the API and the console. :mod:`.health_views` answers load balancers and Prometheus without a credential,
and :mod:`.lag_metrics` has its figures for /metrics.
"""
