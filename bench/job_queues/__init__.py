"""Job queues side by side: their tasks, producers and probes; see ``bench.measures.jobs``.

The other systems run in a Python environment without this project. So these modules import only the standard library,
each other, and the one system that they adapt.
"""
