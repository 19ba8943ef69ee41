"""The queues of Apache Curator on real servers, from Python and beside Curator itself."""
