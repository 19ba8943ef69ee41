"""Job queues side by side: their tasks, what sends them, and what counts them; see ``bench.measures.jobs``.

Programs of other systems run by a Python that has these systems and nothing of this project, so these modules import
the standard library, each other, and at most the one system that they are about.
"""
