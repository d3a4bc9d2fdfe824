"""Actions: one file each, exporting ``ACTION``. They act on what was decided, and never decide."""
