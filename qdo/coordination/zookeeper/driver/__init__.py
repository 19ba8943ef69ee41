"""The one package that knows kazoo: sessions of ZooKeeper for an event loop, with errors and values of our own."""
