"""The samples in ``deploy/``, each checked as far as this machine can."""
