"""Owns an engine's processes: spawns them, knows all of them, ends them and proves it."""
