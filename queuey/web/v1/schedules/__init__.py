"""Version 1 of schedules: ``/v1/{app}/_schedules``.

Its views are in :mod:`.views`, its bodies in :mod:`queuey.api.schedules`.
"""
