"""Operating a keyspace: migrations, the doctor, garbage collection."""
