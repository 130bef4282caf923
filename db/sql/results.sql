-- name: lock_document
-- Writers of one document's rows take turns.
SELECT id FROM quarry.document WHERE id = :document_id FOR NO KEY UPDATE;

-- name: lock_documents
-- The same for many, in one order.
SELECT id FROM quarry.document
WHERE id IN (SELECT document_id FROM quarry.job_item WHERE id = ANY(:item_ids)) ORDER BY id FOR NO KEY UPDATE;

-- name: supersede
-- Of a document's entities under any version of a schema, those of `keep_item_id` become the current ones.
WITH changed AS (
    UPDATE quarry.entity e SET current = (e.item_id = :keep_item_id)
    WHERE e.document_id = :document_id
      AND e.schema_id IN (SELECT id FROM quarry.extraction_schema WHERE name = :schema_name)
      AND e.current <> (e.item_id = :keep_item_id)
    RETURNING e.id, e.current
)
UPDATE quarry.mention m SET current = changed.current FROM changed WHERE m.entity_id = changed.id;

-- name: reuse
-- Items whose work was done before are done at once. Preferred is an earlier item of the same document: its rows are
-- taken as they are.
WITH source AS (
    SELECT DISTINCT ON (new.id) new.id, coalesce(old.reused_from, old.id) AS worked, old.rows_item_id AS rows,
           old.document_id = new.document_id AS same, old.clean_text_id, old.chunker
    FROM quarry.job_item new
    JOIN quarry.job_item old
      ON old.work_key = new.work_key AND old.state = 'done' AND old.id <> new.id AND old.rows_item_id IS NOT NULL
    WHERE new.id = ANY(:item_ids)
    ORDER BY new.id, (old.document_id = new.document_id) DESC, old.id
), reused AS (
    UPDATE quarry.job_item i
    SET state = 'done', reused_from = source.worked, clean_text_id = source.clean_text_id, chunker = source.chunker,
        rows_item_id = CASE WHEN source.same THEN source.rows ELSE i.id END,
        lease_until = NULL, worker = NULL, not_before = NULL, error = NULL, finished_at = now()
    FROM source
    WHERE i.id = source.id AND i.state NOT IN ('done', 'failed', 'cancelled')
    RETURNING i.id, i.document_id, i.rows_item_id, source.rows AS source_item_id
)
SELECT id, document_id, rows_item_id, source_item_id FROM reused ORDER BY id;

-- name: copy_entities
-- The same content under another address gets rows of its own. `ordinal` pairs copies with originals.
INSERT INTO quarry.entity (schema_id, document_id, item_id, job_id, ordinal, key, data, confidence, grounded, current)
SELECT j.schema_id, i.document_id, i.id, i.job_id, e.ordinal, e.key, e.data, e.confidence, e.grounded, false
FROM unnest(CAST(:item_ids AS bigint[]), CAST(:source_ids AS bigint[])) AS pair(item_id, source_id)
JOIN quarry.job_item i ON i.id = pair.item_id
JOIN quarry.job j ON j.id = i.job_id
JOIN quarry.entity e ON e.item_id = pair.source_id;

-- name: copy_merges
-- Entities that were one in the original are one in the copy.
UPDATE quarry.entity copy SET merged_into = winner.id
FROM unnest(CAST(:item_ids AS bigint[]), CAST(:source_ids AS bigint[])) AS pair(item_id, source_id)
JOIN quarry.entity e ON e.item_id = pair.source_id
JOIN quarry.entity w ON w.id = e.merged_into AND w.item_id = pair.source_id
JOIN quarry.entity winner ON winner.item_id = pair.item_id AND winner.ordinal = w.ordinal
WHERE copy.item_id = pair.item_id AND copy.ordinal = e.ordinal;

-- name: copy_mentions
-- Their sources: same content, same clean text, same chunks and offsets.
INSERT INTO quarry.mention
    (item_id, entity_id, run_id, path, value, chunk_id, start, "end", status, confidence, current)
SELECT copy.item_id, copy.id, m.run_id, m.path, m.value, m.chunk_id, m.start, m."end", m.status, m.confidence, false
FROM unnest(CAST(:item_ids AS bigint[]), CAST(:source_ids AS bigint[])) AS pair(item_id, source_id)
JOIN quarry.entity e ON e.item_id = pair.source_id
JOIN quarry.entity copy ON copy.item_id = pair.item_id AND copy.ordinal = e.ordinal
JOIN quarry.mention m ON m.entity_id = e.id
ORDER BY m.id;

-- name: supersede_reused
-- The rows of reused items become the current ones of their documents.
WITH kept AS (
    SELECT DISTINCT ON (i.document_id, s.name) i.document_id, s.name, i.rows_item_id
    FROM quarry.job_item i
    JOIN quarry.job j ON j.id = i.job_id
    JOIN quarry.extraction_schema s ON s.id = j.schema_id
    WHERE i.id = ANY(:item_ids)
    ORDER BY i.document_id, s.name, i.id DESC
), changed AS (
    UPDATE quarry.entity e SET current = (e.item_id = kept.rows_item_id)
    FROM kept, quarry.extraction_schema s
    WHERE e.document_id = kept.document_id AND s.name = kept.name AND e.schema_id = s.id
      AND e.current <> (e.item_id = kept.rows_item_id)
    RETURNING e.id, e.current
)
UPDATE quarry.mention m SET current = changed.current FROM changed WHERE m.entity_id = changed.id;
