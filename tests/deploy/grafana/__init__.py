"""The Grafana dashboard: every query asked of recorded metrics."""
