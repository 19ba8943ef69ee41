"""The Helm chart: rendered by Helm itself, checked against Kubernetes' schemas and the service's behaviour."""
