"""The Helm chart: rendered by Helm itself, checked against Kubernetes' schemas and against what the service does."""
