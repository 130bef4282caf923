-- A submission streams into a temporary table, so that nothing is locked while its sources are read; then four statements
-- put all of it in place, each in one order, so that submissions that overlap wait for each other and never deadlock.

-- name: create_incoming
-- What is being submitted. Gone with the transaction.
CREATE TEMPORARY TABLE incoming (
    n bigint GENERATED ALWAYS AS IDENTITY,
    source_uri text NOT NULL,
    sha256 bytea,
    bytes bytea,
    media_type text,
    metadata jsonb,
    work_key bytea,
    reason text,
    detail text
) ON COMMIT DROP;

-- name: index_incoming
-- The planner's view of it; one row per blob is found by this index.
CREATE INDEX ON incoming (sha256, n);

-- name: analyze_incoming
ANALYZE incoming;

-- name: insert_job
INSERT INTO quarry.job (name, schema_id, settings, settings_digest)
VALUES (:name, :schema_id, CAST(:settings AS jsonb), :settings_digest)
RETURNING id;

-- name: insert_blobs
INSERT INTO quarry.blob (sha256, bytes, size)
SELECT i.sha256, i.bytes, octet_length(i.bytes)
FROM (SELECT DISTINCT ON (sha256) sha256, n FROM incoming WHERE reason IS NULL ORDER BY sha256, n) first
JOIN incoming i ON i.n = first.n AND i.sha256 = first.sha256
ORDER BY i.sha256
ON CONFLICT DO NOTHING;

-- name: insert_documents
INSERT INTO quarry.document (source_uri, blob_sha256, media_type, metadata)
SELECT DISTINCT ON (source_uri, sha256) source_uri, sha256, media_type, metadata
FROM incoming WHERE reason IS NULL
ORDER BY source_uri, sha256, n
ON CONFLICT DO NOTHING;

-- name: insert_items
-- In the order of submission; the same document twice is one item.
INSERT INTO quarry.job_item (job_id, document_id, state, step, work_key, priority)
SELECT :job_id, d.id, 'stored', 'ingest', i.work_key, :priority
FROM incoming i
JOIN quarry.document d ON d.source_uri = i.source_uri AND d.blob_sha256 = i.sha256
WHERE i.reason IS NULL
ORDER BY i.n
ON CONFLICT DO NOTHING;

-- name: insert_rejected
-- Sources that never became documents are failed items, so that a job accounts for all it was given.
WITH failed AS (
    INSERT INTO quarry.job_item (job_id, source_uri, state, step, error, priority, finished_at)
    SELECT :job_id, source_uri, 'failed', 'submit', reason || ': ' || detail, :priority, now()
    FROM incoming WHERE reason IS NOT NULL ORDER BY n
    RETURNING id, source_uri, error
)
INSERT INTO quarry.dead_letter (item_id, attempt, step, reason, detail)
SELECT id, 0, 'submit', split_part(error, ': ', 1), substr(error, strpos(error, ': ') + 2) FROM failed;

-- name: items_to_reuse
-- New items whose work is done already.
SELECT new.id FROM quarry.job_item new
WHERE new.job_id = :job_id AND new.state = 'stored'
  AND EXISTS (SELECT FROM quarry.job_item old
              WHERE old.work_key = new.work_key AND old.state = 'done' AND old.rows_item_id IS NOT NULL)
ORDER BY new.id;

-- name: queue_all
INSERT INTO quarry.outbox (task, item_id, priority)
SELECT 'ingest', id, priority FROM quarry.job_item WHERE job_id = :job_id AND state = 'stored' ORDER BY id;

-- name: count_items
SELECT count(*) AS items, count(reused_from) AS reused FROM quarry.job_item WHERE job_id = :job_id;
