"""Probes: one module each, exporting ``PROBE``. A leading underscore hides a module from them."""
