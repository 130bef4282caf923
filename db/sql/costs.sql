-- Tokens and cost are on the span that spent them, so sums over spans count nothing twice. Seconds are a span's own: its
-- children's are taken off, so that the steps of a document add up to its time.

-- name: by_step
-- What each kind of step took.
SELECT p.name AS label, count(*) AS spans, count(DISTINCT p.document_id) AS documents,
       coalesce(sum(greatest(extract(epoch FROM p.ended_at - p.started_at) - coalesce(c.seconds, 0), 0)), 0) AS seconds,
       sum(p.input_tokens) AS input_tokens, sum(p.cached_tokens) AS cached_tokens,
       sum(p.output_tokens) AS output_tokens, sum(p.cost_usd) AS cost_usd
FROM quarry.span p
LEFT JOIN (
    SELECT trace_id, parent_id, sum(extract(epoch FROM ended_at - started_at)) AS seconds
    FROM quarry.span
    WHERE parent_id IS NOT NULL AND (CAST(:job_id AS bigint) IS NULL OR job_id = :job_id)
    GROUP BY trace_id, parent_id
) c ON c.trace_id = p.trace_id AND c.parent_id = p.id
WHERE (CAST(:job_id AS bigint) IS NULL OR p.job_id = :job_id)
GROUP BY p.name ORDER BY cost_usd DESC, seconds DESC;

-- name: by_job
-- What each job took.
SELECT j.id || ' ' || j.name AS label, count(*) AS spans, count(DISTINCT p.document_id) AS documents,
       coalesce(sum(greatest(extract(epoch FROM p.ended_at - p.started_at) - coalesce(c.seconds, 0), 0)), 0) AS seconds,
       sum(p.input_tokens) AS input_tokens, sum(p.cached_tokens) AS cached_tokens,
       sum(p.output_tokens) AS output_tokens, sum(p.cost_usd) AS cost_usd
FROM quarry.span p
LEFT JOIN (
    SELECT trace_id, parent_id, sum(extract(epoch FROM ended_at - started_at)) AS seconds
    FROM quarry.span
    WHERE parent_id IS NOT NULL AND (CAST(:job_id AS bigint) IS NULL OR job_id = :job_id)
    GROUP BY trace_id, parent_id
) c ON c.trace_id = p.trace_id AND c.parent_id = p.id
JOIN quarry.job j ON j.id = p.job_id
WHERE (CAST(:job_id AS bigint) IS NULL OR p.job_id = :job_id)
GROUP BY j.id || ' ' || j.name ORDER BY cost_usd DESC, seconds DESC;

-- name: by_schema
-- What each schema took, all versions.
SELECT s.name AS label, count(*) AS spans, count(DISTINCT p.document_id) AS documents,
       coalesce(sum(greatest(extract(epoch FROM p.ended_at - p.started_at) - coalesce(c.seconds, 0), 0)), 0) AS seconds,
       sum(p.input_tokens) AS input_tokens, sum(p.cached_tokens) AS cached_tokens,
       sum(p.output_tokens) AS output_tokens, sum(p.cost_usd) AS cost_usd
FROM quarry.span p
LEFT JOIN (
    SELECT trace_id, parent_id, sum(extract(epoch FROM ended_at - started_at)) AS seconds
    FROM quarry.span
    WHERE parent_id IS NOT NULL AND (CAST(:job_id AS bigint) IS NULL OR job_id = :job_id)
    GROUP BY trace_id, parent_id
) c ON c.trace_id = p.trace_id AND c.parent_id = p.id
JOIN quarry.extraction_schema s ON s.id = p.schema_id
WHERE (CAST(:job_id AS bigint) IS NULL OR p.job_id = :job_id)
GROUP BY s.name ORDER BY cost_usd DESC, seconds DESC;

-- name: by_model
-- What each model took; steps without a model are no part of it.
SELECT p.model AS label, count(*) AS spans, count(DISTINCT p.document_id) AS documents,
       coalesce(sum(greatest(extract(epoch FROM p.ended_at - p.started_at) - coalesce(c.seconds, 0), 0)), 0) AS seconds,
       sum(p.input_tokens) AS input_tokens, sum(p.cached_tokens) AS cached_tokens,
       sum(p.output_tokens) AS output_tokens, sum(p.cost_usd) AS cost_usd
FROM quarry.span p
LEFT JOIN (
    SELECT trace_id, parent_id, sum(extract(epoch FROM ended_at - started_at)) AS seconds
    FROM quarry.span
    WHERE parent_id IS NOT NULL AND (CAST(:job_id AS bigint) IS NULL OR job_id = :job_id)
    GROUP BY trace_id, parent_id
) c ON c.trace_id = p.trace_id AND c.parent_id = p.id
WHERE (CAST(:job_id AS bigint) IS NULL OR p.job_id = :job_id) AND p.model IS NOT NULL
GROUP BY p.model ORDER BY cost_usd DESC, seconds DESC;
