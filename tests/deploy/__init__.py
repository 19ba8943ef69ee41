"""The samples in ``deploy/``, each checked as far as possible on this machine."""
