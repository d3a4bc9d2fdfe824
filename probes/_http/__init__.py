"""The bounded HTTP client of the engine probes: one deadline and one size for a whole exchange.

Import ``Answer`` and ``Trouble`` from ``answers``; ``client`` costs the import of httpx and is
imported when a probe is built.
"""
