"""The Grafana dashboard: every query is run on recorded metrics."""
