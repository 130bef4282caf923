-- name: lock
-- One writer of schemas at a time: versions are counted and views replaced.
SELECT pg_advisory_xact_lock(1363494211);

-- name: newest
-- The version in use of one schema.
SELECT * FROM quarry.extraction_schema
WHERE name = :name AND dropped_at IS NULL
ORDER BY version DESC LIMIT 1;

-- name: version
-- One version, in use or not.
SELECT * FROM quarry.extraction_schema WHERE name = :name AND version = :version;

-- name: list_newest
-- The version in use of each schema.
SELECT DISTINCT ON (name) * FROM quarry.extraction_schema
WHERE dropped_at IS NULL
ORDER BY name, version DESC;

-- name: insert
-- The next version.
INSERT INTO quarry.extraction_schema (name, version, json_schema, instructions, examples, digest, columns)
SELECT :name, coalesce(max(version), 0) + 1, CAST(:json_schema AS json), :instructions, CAST(:examples AS json),
       :digest, CAST(:columns AS json)
FROM quarry.extraction_schema WHERE name = :name
RETURNING *;

-- name: running_jobs
-- Jobs that still need the schema.
SELECT j.id FROM quarry.job j JOIN quarry.extraction_schema s ON s.id = j.schema_id
WHERE s.name = :name AND j.state = 'running' ORDER BY j.id;

-- name: drop
-- Out of use, all versions. Rows extracted under them stay.
UPDATE quarry.extraction_schema SET dropped_at = now() WHERE name = :name AND dropped_at IS NULL;
