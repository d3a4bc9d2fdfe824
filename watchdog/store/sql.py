"""The statements of the store. Columns of a generation are in the order of GenerationRecord."""

PLAN = """
INSERT OR REPLACE INTO generations (
  state, id, engine, tempdir, log_path, log_offset, port, command, boot_id,
  planned_at, planned_wall, pid, start_ticks, spawned_at, ready_at, launched)
VALUES ('planned', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

COUNT_START = """
INSERT INTO numbers
SELECT 'starts/' || engine, 1 FROM generations WHERE id = ? AND state = 'planned'
ON CONFLICT (name) DO UPDATE SET value = value + 1
"""

SPAWN = """
UPDATE generations
SET state = 'living', pid = ?, start_ticks = ?, spawned_at = ?, spawned_wall = ?
WHERE id = ? AND state != 'ended'
"""

MEMBER = "INSERT INTO members VALUES (?, ?, ?)"
MEMBERS = "SELECT pid, start_ticks FROM members WHERE generation = ?"
FORGET_MEMBERS = "DELETE FROM members WHERE generation = ?"

READY = "UPDATE generations SET ready_at = ?, ready_wall = ? WHERE id = ?"

END = """
UPDATE generations SET state = 'ended', ended_wall = ?, exit_code = ?, signal = ?, cause = ?
WHERE id = ? AND state != 'ended'
"""

LIVING = """
SELECT id, engine, tempdir, log_path, log_offset, port, command, boot_id,
  planned_at, planned_wall, pid, start_ticks, spawned_at, ready_at, launched
FROM generations WHERE engine = ? AND state != 'ended' ORDER BY serial DESC
"""

ENGINES = """
SELECT DISTINCT engine FROM generations WHERE state != 'ended' AND boot_id = ? ORDER BY engine
"""

HISTORY = """
SELECT id, engine, pid, planned_wall, spawned_wall, ready_wall, ended_wall,
  exit_code, signal, cause
FROM generations WHERE engine = ? AND state = 'ended' ORDER BY serial DESC LIMIT ?
"""

FORGET_GENERATIONS = """
DELETE FROM generations WHERE state = 'ended' AND serial <= (
  SELECT serial FROM generations WHERE state = 'ended' ORDER BY serial DESC LIMIT 1 OFFSET ?)
"""

SAVE = "INSERT OR REPLACE INTO saved VALUES (?, ?, ?, ?, ?)"
SAVED = "SELECT body, boot_id, monotonic, wall FROM saved WHERE name = ?"
UNSAVE = "DELETE FROM saved WHERE name = ?"

NUMBER = "SELECT value FROM numbers WHERE name = ?"

SERIAL = """
INSERT INTO numbers VALUES ('incident_serial', ?)
ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)
"""

INCIDENT = """
INSERT INTO incidents (id, body, opened, resolved) VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE
SET body = excluded.body, opened = excluded.opened, resolved = excluded.resolved
"""

INCIDENTS = "SELECT id, body, opened, resolved FROM incidents ORDER BY serial DESC LIMIT ?"
ONE_INCIDENT = "SELECT id, body, opened, resolved FROM incidents WHERE id = ?"

FORGET_INCIDENTS = """
DELETE FROM incidents WHERE serial <= (
  SELECT serial FROM incidents ORDER BY serial DESC LIMIT 1 OFFSET ?)
"""

ENDED_TEMPDIRS = """
SELECT tempdir FROM generations WHERE state = 'ended' ORDER BY serial DESC LIMIT 200
"""
