"""Version 1 of schedules: ``/v1/{app}/_schedules``, its bodies (:mod:`.bodies`) and views (:mod:`.views`)."""
