-- name: jobs
-- Jobs with their counts, newest first.
SELECT j.id, j.name, s.name AS schema, s.version AS schema_version, j.state, j.created_at, j.finished_at,
       c.items, c.done, c.failed, c.cancelled, c.reused
FROM quarry.job j
JOIN quarry.extraction_schema s ON s.id = j.schema_id
CROSS JOIN LATERAL (
    SELECT count(*) AS items, count(*) FILTER (WHERE state = 'done') AS done,
           count(*) FILTER (WHERE state = 'failed') AS failed,
           count(*) FILTER (WHERE state = 'cancelled') AS cancelled, count(reused_from) AS reused
    FROM quarry.job_item i WHERE i.job_id = j.id
) c
WHERE CAST(:job_id AS bigint) IS NULL OR j.id = :job_id
ORDER BY j.id DESC LIMIT :limit;

-- name: counts
-- A job's items by state.
SELECT state, count(*) AS n, count(reused_from) AS reused,
       count(*) FILTER (WHERE failures > 0 AND state NOT IN ('done', 'failed', 'cancelled')) AS retrying
FROM quarry.job_item WHERE job_id = :job_id GROUP BY state;

-- name: pace
-- What was worked off in the last minute or since the job began; reused and rejected items took no time.
SELECT count(i.id) AS finished,
       extract(epoch FROM now() - greatest(j.created_at, now() - interval '60 seconds')) AS seconds,
       extract(epoch FROM coalesce(j.finished_at, now()) - j.created_at) AS elapsed
FROM quarry.job j
LEFT JOIN quarry.job_item i
       ON i.job_id = j.id AND i.state IN ('done', 'failed') AND i.reused_from IS NULL AND i.document_id IS NOT NULL
      AND i.finished_at > now() - interval '60 seconds'
WHERE j.id = :job_id
GROUP BY j.id;

-- name: spent
-- A job's tokens and cost so far, and the values left out for want of a source. A step's other tries have no `write`.
SELECT coalesce(sum(input_tokens), 0) AS input_tokens, coalesce(sum(cached_tokens), 0) AS cached_tokens,
       coalesce(sum(output_tokens), 0) AS output_tokens, coalesce(sum(cost_usd), 0) AS cost_usd,
       coalesce(sum(CAST(attributes ->> 'left_out' AS bigint)) FILTER (WHERE name = 'write'), 0) AS left_out
FROM quarry.span WHERE job_id = :job_id;

-- name: failures
-- Failed items with their last reason, newest first.
SELECT i.job_id, i.id AS item_id, coalesce(d.source_uri, i.source_uri) AS source_uri, l.step, l.reason, l.detail,
       l.attempt, l.created_at AS failed_at
FROM quarry.job_item i
LEFT JOIN quarry.document d ON d.id = i.document_id
CROSS JOIN LATERAL (
    SELECT * FROM quarry.dead_letter x WHERE x.item_id = i.id ORDER BY x.id DESC LIMIT 1
) l
WHERE i.state = 'failed' AND (CAST(:job_id AS bigint) IS NULL OR i.job_id = :job_id)
ORDER BY l.created_at DESC, i.id DESC LIMIT :limit;

-- name: entities
-- Current entities of a schema, or those of one job, with their spans.
SELECT e.id AS entity_id, e.document_id, d.source_uri, t.title, e.data, e.grounded, e.confidence, e.job_id,
       e.created_at AS extracted_at, m.spans
FROM quarry.entity e
JOIN quarry.extraction_schema s ON s.id = e.schema_id
JOIN quarry.document d ON d.id = e.document_id
JOIN quarry.job_item i ON i.id = e.item_id
LEFT JOIN quarry.clean_text t ON t.id = i.clean_text_id
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_object(
               'path', m.path, 'value', m.value, 'start', m.start, 'end', m."end", 'status', m.status,
               'confidence', m.confidence,
               'text', CASE WHEN m."end" <= c."end"
                            THEN substr(c.text, (m.start - c.start)::int + 1, (m."end" - m.start)::int)
                            ELSE substr(t.text, m.start::int + 1, (m."end" - m.start)::int) END) ORDER BY m.id) AS spans
    FROM quarry.mention m LEFT JOIN quarry.chunk c ON c.id = m.chunk_id AND c.start <= m.start
    WHERE m.entity_id = e.id
) m ON true
WHERE s.name = :schema
  AND e.merged_into IS NULL
  AND (CASE WHEN CAST(:job_id AS bigint) IS NULL THEN e.current
            ELSE e.item_id IN (SELECT rows_item_id FROM quarry.job_item WHERE job_id = :job_id) END)
ORDER BY e.document_id, e.item_id, e.ordinal
LIMIT :limit;

-- name: languages
-- Languages there are, one index step each.
WITH RECURSIVE step AS (
    (SELECT language FROM quarry.clean_text WHERE language IS NOT NULL ORDER BY language LIMIT 1)
    UNION ALL
    SELECT (SELECT t.language FROM quarry.clean_text t WHERE t.language > step.language ORDER BY t.language LIMIT 1)
    FROM step WHERE step.language IS NOT NULL
)
SELECT language FROM step WHERE language IS NOT NULL;

-- name: hits
-- Chunks with the first document that has them and passes the filters.
SELECT DISTINCT ON (c.id) c.id AS chunk_id, d.id AS document_id, d.source_uri, t.title, c.start, c."end", c.text,
       c.heading_path
FROM quarry.chunk c
JOIN quarry.clean_text t ON t.id = c.clean_text_id
JOIN quarry.document d ON d.blob_sha256 = t.blob_sha256 AND d.media_type = t.media_type
WHERE c.id = ANY(:chunk_ids)
  AND (CAST(:document_ids AS bigint[]) IS NULL OR d.id = ANY(:document_ids))
  AND (CAST(:source_prefix AS text) IS NULL OR starts_with(d.source_uri, :source_prefix))
  AND (CAST(:job_id AS bigint) IS NULL
       OR EXISTS (SELECT FROM quarry.job_item i WHERE i.document_id = d.id AND i.job_id = :job_id))
ORDER BY c.id, d.id;
