"""Network namespaces: which one an engine is in, and what the kernel tells of its sockets."""
