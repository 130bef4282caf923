-- The claim protocol. `attempt` is the fence: every write of a worker names the attempt that it was given, and claiming,
-- taking back and cancelling raise it. All times are the database's.

-- name: claim
-- Take an item that is free, or whose lease ran out, which counts as a failed try.
UPDATE quarry.job_item
SET attempt = attempt + 1,
    failures = failures + (lease_until IS NOT NULL)::int,
    state = CASE WHEN :step = 'extract' THEN 'extracting' ELSE state END,
    step = :step,
    worker = :worker,
    lease_until = now() + make_interval(secs => :lease_seconds),
    not_before = NULL
WHERE id = :item_id
  AND state = ANY(:states)
  AND (lease_until IS NULL OR lease_until < now())
  AND (not_before IS NULL OR not_before <= now())
  AND failures + (lease_until IS NOT NULL)::int < :max_attempts
RETURNING id, job_id, document_id, attempt, failures, state, clean_text_id, chunker, priority;

-- name: describe
-- What a task needs to know beside its item.
SELECT d.source_uri, d.blob_sha256, d.media_type, d.metadata, j.settings, j.name AS job_name,
       s.id AS schema_id, s.name AS schema_name, s.digest AS schema_digest, s.json_schema, s.instructions, s.examples,
       EXISTS (SELECT FROM quarry.job_item o
               WHERE o.work_key = i.work_key AND o.state = 'done' AND o.id <> i.id) AS done_before
FROM quarry.job_item i
JOIN quarry.document d ON d.id = i.document_id
JOIN quarry.job j ON j.id = i.job_id
JOIN quarry.extraction_schema s ON s.id = j.schema_id
WHERE i.id = :item_id;

-- name: renew
-- Extend leases that are still held; what does not come back is lost.
UPDATE quarry.job_item i
SET lease_until = now() + make_interval(secs => :lease_seconds)
FROM unnest(CAST(:ids AS bigint[]), CAST(:attempts AS bigint[])) AS held(id, attempt)
WHERE i.id = held.id AND i.attempt = held.attempt AND i.lease_until IS NOT NULL
RETURNING i.id;

-- name: advance
-- A step worked: the next state, in the transaction of its results. No row: the attempt no longer holds.
UPDATE quarry.job_item
SET state = :state, failures = 0, error = NULL, clean_text_id = :clean_text_id, chunker = :chunker
WHERE id = :item_id AND attempt = :attempt
RETURNING id;

-- name: hand_over
-- Ingest is done: free the item for extraction.
UPDATE quarry.job_item
SET state = 'embedded', failures = 0, error = NULL, lease_until = NULL, worker = NULL
WHERE id = :item_id AND attempt = :attempt
RETURNING id;

-- name: finish
-- Extraction is done: the item's rows are its own.
UPDATE quarry.job_item
SET state = 'done', failures = 0, error = NULL, lease_until = NULL, worker = NULL, rows_item_id = id,
    finished_at = now()
WHERE id = :item_id AND attempt = :attempt
RETURNING id;

-- name: release
-- A try failed for now: give the item back and let it rest. The message is due when the rest is over.
WITH released AS (
    UPDATE quarry.job_item
    SET state = CASE WHEN state = 'extracting' THEN 'embedded' ELSE state END,
        failures = failures + :failed, error = :error, lease_until = NULL, worker = NULL,
        not_before = now() + make_interval(secs => :delay_seconds)
    WHERE id = :item_id AND attempt = :attempt
    RETURNING id, step, priority, not_before
)
INSERT INTO quarry.outbox (task, item_id, priority, due_at)
SELECT step, id, priority, not_before FROM released
RETURNING item_id;

-- name: rest
-- The same work is under way elsewhere: look again later. Nothing was claimed and nothing failed.
WITH resting AS (
    UPDATE quarry.job_item
    SET not_before = now() + make_interval(secs => :delay_seconds)
    WHERE id = :item_id AND state = 'embedded' AND lease_until IS NULL
      AND (not_before IS NULL OR not_before <= now())
    RETURNING id, priority, not_before
)
INSERT INTO quarry.outbox (task, item_id, priority, due_at)
SELECT 'extract', id, priority, not_before FROM resting;

-- name: fail
-- A try failed for good.
WITH failed AS (
    UPDATE quarry.job_item
    SET state = 'failed', error = :error, lease_until = NULL, worker = NULL, finished_at = now()
    WHERE id = :item_id AND attempt = :attempt
    RETURNING id, attempt
)
INSERT INTO quarry.dead_letter (item_id, attempt, step, reason, detail)
SELECT id, attempt, :step, :reason, :detail FROM failed
RETURNING item_id;

-- name: queue
-- A message for an item, to be sent after the commit.
INSERT INTO quarry.outbox (task, item_id, priority) VALUES (:task, :item_id, :priority);

-- name: take_back
-- Items whose worker went silent: free them and count a failed try.
WITH lost AS (
    SELECT id FROM quarry.job_item
    WHERE lease_until < now() AND failures + 1 < :max_attempts
    ORDER BY lease_until LIMIT :batch FOR UPDATE SKIP LOCKED
), freed AS (
    UPDATE quarry.job_item i
    SET attempt = i.attempt + 1, failures = i.failures + 1, lease_until = NULL, worker = NULL,
        state = CASE WHEN i.state = 'extracting' THEN 'embedded' ELSE i.state END,
        error = 'worker_lost: ' || coalesce(i.worker, 'a worker') || ' went silent; its lease ran out'
    FROM lost WHERE i.id = lost.id
    RETURNING i.id, i.step, i.priority
)
INSERT INTO quarry.outbox (task, item_id, priority)
SELECT step, id, priority FROM freed
RETURNING item_id;

-- name: give_up
-- Items whose lease ran out as often as may be.
WITH lost AS (
    SELECT id FROM quarry.job_item
    WHERE lease_until < now() AND failures + 1 >= :max_attempts
    ORDER BY lease_until LIMIT :batch FOR UPDATE SKIP LOCKED
), failed AS (
    UPDATE quarry.job_item i
    SET attempt = i.attempt + 1, failures = i.failures + 1, state = 'failed', lease_until = NULL, finished_at = now(),
        error = 'worker_lost: ' || coalesce(i.worker, 'a worker') || ' went silent'
    FROM lost WHERE i.id = lost.id
    RETURNING i.id, i.attempt, i.step, i.worker, i.failures
)
INSERT INTO quarry.dead_letter (item_id, attempt, step, reason, detail)
SELECT id, attempt, step, 'worker_lost',
       format('%s tries of this step failed; in the last one %s went silent and its lease ran out: '
              'it was killed, ran out of memory or hung on this document', failures, coalesce(worker, 'the worker'))
FROM failed
RETURNING item_id;

-- name: resend
-- Items that wait though their message was sent a while ago: it was lost with the broker.
WITH waiting AS (
    SELECT i.id, i.state, i.priority FROM quarry.job_item i
    WHERE i.state IN ('stored', 'cleaned', 'chunked', 'embedded')
      AND i.lease_until IS NULL
      AND (i.not_before IS NULL OR i.not_before <= now())
      AND (i.state = 'embedded') = (:task = 'extract')
      AND NOT EXISTS (
          SELECT FROM quarry.outbox o
          WHERE o.item_id = i.id
            AND (o.sent_at IS NULL OR o.sent_at > now() - make_interval(secs => :seconds)))
    ORDER BY i.id LIMIT :batch FOR UPDATE SKIP LOCKED
)
INSERT INTO quarry.outbox (task, item_id, priority)
SELECT :task, id, priority FROM waiting
RETURNING item_id;

-- name: unsent
-- Messages that are due, locked until they are marked; what another sender holds is skipped.
SELECT id, task, item_id, priority FROM quarry.outbox
WHERE sent_at IS NULL AND due_at <= now()
  AND (CAST(:item_id AS bigint) IS NULL OR item_id = :item_id)
ORDER BY due_at, id LIMIT :batch FOR UPDATE SKIP LOCKED;

-- name: mark_sent
-- The broker has them.
UPDATE quarry.outbox SET sent_at = now() WHERE id = ANY(:ids);

-- name: prune_outbox
-- Messages of long ago; `resend` looks at younger ones only.
DELETE FROM quarry.outbox
WHERE id IN (SELECT id FROM quarry.outbox WHERE sent_at < now() - interval '1 day' LIMIT :batch);

-- name: finish_jobs
-- Jobs with no open item left.
UPDATE quarry.job j SET state = 'done', finished_at = now()
WHERE j.state = 'running'
  AND (CAST(:job_id AS bigint) IS NULL OR j.id = :job_id)
  AND NOT EXISTS (
      SELECT FROM quarry.job_item i
      WHERE i.job_id = j.id AND i.state IN ('stored', 'cleaned', 'chunked', 'embedded', 'extracting'))
RETURNING j.id;

-- name: cancel
-- Stop all that is open; raising the attempt makes what workers still hold worthless.
UPDATE quarry.job_item
SET state = 'cancelled', attempt = attempt + 1, lease_until = NULL, worker = NULL, not_before = NULL,
    finished_at = now()
WHERE job_id = :job_id AND state IN ('stored', 'cleaned', 'chunked', 'embedded', 'extracting');

-- name: cancel_job
-- The job's own state.
UPDATE quarry.job SET state = 'cancelled', finished_at = now() WHERE id = :job_id AND state = 'running';

-- name: retry
-- Failed and cancelled items from the start; steps whose results are there pass at once.
WITH again AS (
    UPDATE quarry.job_item
    SET state = 'stored', step = 'ingest', attempt = attempt + 1, failures = 0, error = NULL, not_before = NULL,
        finished_at = NULL
    WHERE job_id = :job_id AND state IN ('failed', 'cancelled') AND document_id IS NOT NULL
    RETURNING id, priority
)
INSERT INTO quarry.outbox (task, item_id, priority) SELECT 'ingest', id, priority FROM again;

-- name: reopen_job
-- A job with open items runs.
UPDATE quarry.job SET state = 'running', finished_at = NULL
WHERE id = :job_id
  AND EXISTS (SELECT FROM quarry.job_item i WHERE i.job_id = :job_id AND i.state = 'stored');
