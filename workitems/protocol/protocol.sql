-- The statements that workers run, by name. Every one that changes an item names its tenant, its operation, the state
-- and the fence it acts on: the condition is in the write. Read beside guards/work_item.sql; in short:
--
--   work_item (tenant_id, operation_id) PRIMARY KEY; payload_hash, payload_ref, job_type: never change;
--   state queued | claimed | succeeded | failed_terminal | unknown | quarantined; claimed if and only if leased;
--   fence rises with every claim (the guard makes it greatest(fence + 1, (timeline << 32) + 1)); attempts < max_attempts while queued.
--
-- Time is the database's: clock_timestamp() where it is written, (SELECT clock_timestamp()) where it is compared, since
-- now() is the start of the transaction and would shorten leases.
-- The batch statements lock their rows in the order of their arrays, which callers give in key order; every other writer of
-- several rows skips locked ones, so none deadlock.

-- name: claim
-- Take due items of one job type; type D one at a time. Zero rows: nothing is due, or others were quicker.
-- ctid, not the key: the candidates are locked, so a ctid stays put, and no statistics can turn the join into a scan. The
-- outer state is an expression, so that the planner cannot go by the queued index again, past the whole backlog, which it
-- does where statistics were taken while the queue was empty.
UPDATE work_item w
   SET state = 'claimed',
       fence = w.fence + 1,
       stamping_fence = w.fence + 1,
       lease_owner = %(worker)s,
       lease_expires_at = clock_timestamp() + make_interval(secs => t.lease_seconds),
       attempts = w.attempts + 1,
       waiting_in_worker = %(waiting)s AND t.target <> 'D'
  FROM job_type t
 WHERE w.ctid = ANY (ARRAY(
           SELECT q.ctid FROM work_item q
            WHERE q.state = 'queued' AND q.job_type = %(job_type)s AND q.available_at <= (SELECT clock_timestamp())
            ORDER BY q.available_at
            LIMIT coalesce((SELECT CASE d.target WHEN 'D' THEN 1 ELSE %(limit)s::bigint END FROM job_type d WHERE d.name = %(job_type)s), 0)
              FOR UPDATE SKIP LOCKED))
   AND w.state || '' = 'queued' AND t.name = %(job_type)s AND t.name = w.job_type
   AND (t.held_until IS NULL OR t.held_until <= (SELECT clock_timestamp()))
RETURNING w.tenant_id, w.operation_id, w.job_type, t.target, w.fence, w.lease_owner AS worker, w.attempts, w.max_attempts,
          w.payload_ref, w.payload_hash, t.lease_seconds, fencewatch.may_have_acted(w, t.target, (SELECT fencewatch.timeline())) AS must_reconcile,
          w.cleared_for_attempt IS NOT DISTINCT FROM w.attempts AS cleared, w.op_digest, w.first_effect_at,
          -- from when a type C key's window counts: what nobody stamped may have happened as early as the enqueue
          CASE WHEN w.foreign_held OR fencewatch.may_be_lost(w.enqueue_timeline, (SELECT fencewatch.timeline()))
               THEN w.enqueued_at ELSE w.first_effect_at END AS window_from,
          w.available_at;

-- name: take_over
-- Take items of one job type whose lease ran out with attempts left. Zero rows: none.
UPDATE work_item w
   SET state = 'claimed',
       fence = w.fence + 1,
       stamping_fence = w.fence + 1,
       lease_owner = %(worker)s,
       lease_expires_at = clock_timestamp() + make_interval(secs => t.lease_seconds),
       attempts = w.attempts + 1,
       waiting_in_worker = %(waiting)s AND t.target <> 'D'
  FROM job_type t
 WHERE w.ctid = ANY (ARRAY(
           SELECT q.ctid FROM work_item q
            WHERE q.state = 'claimed' AND q.attempts > 0 AND q.job_type = %(job_type)s
              AND q.lease_expires_at < (SELECT clock_timestamp()) AND q.attempts < q.max_attempts
            ORDER BY q.claimed_at
            LIMIT coalesce((SELECT CASE d.target WHEN 'D' THEN 1 ELSE %(limit)s::bigint END FROM job_type d WHERE d.name = %(job_type)s), 0)
              FOR UPDATE SKIP LOCKED))
   AND w.state = 'claimed' AND w.lease_expires_at < (SELECT clock_timestamp()) AND t.name = %(job_type)s AND t.name = w.job_type
   AND (t.held_until IS NULL OR t.held_until <= (SELECT clock_timestamp()))
RETURNING w.tenant_id, w.operation_id, w.job_type, t.target, w.fence, w.lease_owner AS worker, w.attempts, w.max_attempts,
          w.payload_ref, w.payload_hash, t.lease_seconds, fencewatch.may_have_acted(w, t.target, (SELECT fencewatch.timeline())) AS must_reconcile,
          w.cleared_for_attempt IS NOT DISTINCT FROM w.attempts AS cleared, w.op_digest, w.first_effect_at,
          -- from when a type C key's window counts: what nobody stamped may have happened as early as the enqueue
          CASE WHEN w.foreign_held OR fencewatch.may_be_lost(w.enqueue_timeline, (SELECT fencewatch.timeline()))
               THEN w.enqueued_at ELSE w.first_effect_at END AS window_from,
          w.available_at;

-- name: begin
-- Stamp that an outside effect may start now. Zero rows: ownership lost, do not act.
UPDATE work_item w
   SET effect_fence = w.fence, effect_at = clock_timestamp(), waiting_in_worker = false
 WHERE w.tenant_id = %(tenant_id)s AND w.operation_id = %(operation_id)s AND w.fence = %(fence)s
   AND w.state = 'claimed' AND w.lease_owner = %(lease_owner)s
RETURNING 1::bigint AS place, w.state;

-- name: hold
-- Lock the item for a write in the same database (type A). Zero rows: ownership lost, roll back. Nobody can take the item
-- over before the transaction ends.
SELECT 1::bigint AS place, w.state FROM work_item w
 WHERE w.tenant_id = %(tenant_id)s AND w.operation_id = %(operation_id)s AND w.fence = %(fence)s
   AND w.state = 'claimed' AND w.lease_owner = %(lease_owner)s
   FOR UPDATE;

-- name: heartbeat
-- Extend leases because work moved on. A row that does not come back: ownership lost, or no progress since the last one.
WITH mine AS MATERIALIZED (
    SELECT w.tenant_id, w.operation_id, w.fence, mine.lease_seconds, mine.progress, mine.place
      FROM unnest(%(tenants)s::text[], %(operations)s::text[], %(fences)s::bigint[], %(owners)s::text[], %(leases)s::int[], %(progress)s::bigint[])
           WITH ORDINALITY AS mine (tenant_id, operation_id, fence, lease_owner, lease_seconds, progress, place)
      JOIN work_item w ON w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence
           AND w.state = 'claimed' AND w.lease_owner = mine.lease_owner AND w.progress < mine.progress
     ORDER BY mine.place FOR UPDATE OF w)
UPDATE work_item w
   SET lease_expires_at = clock_timestamp() + make_interval(secs => mine.lease_seconds), progress = mine.progress, waiting_in_worker = false
  FROM mine
 WHERE w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence AND w.state = 'claimed'
RETURNING mine.place, w.state;

-- name: extend_waiting
-- Extend the leases of batch-mates whose turn has not come. A row that does not come back: ownership lost, drop it.
WITH mine AS MATERIALIZED (
    SELECT w.tenant_id, w.operation_id, w.fence, mine.lease_seconds, mine.place
      FROM unnest(%(tenants)s::text[], %(operations)s::text[], %(fences)s::bigint[], %(owners)s::text[], %(leases)s::int[])
           WITH ORDINALITY AS mine (tenant_id, operation_id, fence, lease_owner, lease_seconds, place)
      JOIN work_item w ON w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence
           AND w.state = 'claimed' AND w.lease_owner = mine.lease_owner AND w.waiting_in_worker
     ORDER BY mine.place FOR UPDATE OF w)
UPDATE work_item w
   SET lease_expires_at = clock_timestamp() + make_interval(secs => mine.lease_seconds)
  FROM mine
 WHERE w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence AND w.state = 'claimed'
RETURNING mine.place, w.state;

-- name: complete
-- Confirmed success. A row that does not come back: a newer claim exists, do not retry this write.
WITH mine AS MATERIALIZED (
    SELECT w.tenant_id, w.operation_id, w.fence, mine.outcome_code, mine.place
      FROM unnest(%(tenants)s::text[], %(operations)s::text[], %(fences)s::bigint[], %(owners)s::text[], %(codes)s::text[])
           WITH ORDINALITY AS mine (tenant_id, operation_id, fence, lease_owner, outcome_code, place)
      JOIN work_item w ON w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence
           AND w.state = 'claimed' AND w.lease_owner = mine.lease_owner
     ORDER BY mine.place FOR UPDATE OF w)
UPDATE work_item w
   SET state = 'succeeded', outcome_code = mine.outcome_code, lease_owner = NULL, lease_expires_at = NULL
  FROM mine
 WHERE w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence AND w.state = 'claimed'
RETURNING mine.place, w.state;

-- name: fail
-- Confirmed failure that no retry can fix. A row that does not come back: ownership lost.
WITH mine AS MATERIALIZED (
    SELECT w.tenant_id, w.operation_id, w.fence, mine.outcome_code, mine.place
      FROM unnest(%(tenants)s::text[], %(operations)s::text[], %(fences)s::bigint[], %(owners)s::text[], %(codes)s::text[])
           WITH ORDINALITY AS mine (tenant_id, operation_id, fence, lease_owner, outcome_code, place)
      JOIN work_item w ON w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence
           AND w.state = 'claimed' AND w.lease_owner = mine.lease_owner
     ORDER BY mine.place FOR UPDATE OF w)
UPDATE work_item w
   SET state = 'failed_terminal', outcome_code = mine.outcome_code, lease_owner = NULL, lease_expires_at = NULL
  FROM mine
 WHERE w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence AND w.state = 'claimed'
RETURNING mine.place, w.state;

-- name: park
-- The outcome is not known. A row that does not come back: ownership lost.
WITH mine AS MATERIALIZED (
    SELECT w.tenant_id, w.operation_id, w.fence, mine.outcome_code, mine.place
      FROM unnest(%(tenants)s::text[], %(operations)s::text[], %(fences)s::bigint[], %(owners)s::text[], %(codes)s::text[])
           WITH ORDINALITY AS mine (tenant_id, operation_id, fence, lease_owner, outcome_code, place)
      JOIN work_item w ON w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence
           AND w.state = 'claimed' AND w.lease_owner = mine.lease_owner
     ORDER BY mine.place FOR UPDATE OF w)
UPDATE work_item w
   SET state = 'unknown', outcome_code = mine.outcome_code, lease_owner = NULL, lease_expires_at = NULL
  FROM mine
 WHERE w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence AND w.state = 'claimed'
RETURNING mine.place, w.state;

-- name: quarantine
-- The input was not understood with confidence; the code is one of the closed list. A row that does not come back:
-- ownership lost, or begun under this claim (then the outcome is in doubt, which is for park, not for the producer).
WITH mine AS MATERIALIZED (
    SELECT w.tenant_id, w.operation_id, w.fence, mine.outcome_code, mine.place
      FROM unnest(%(tenants)s::text[], %(operations)s::text[], %(fences)s::bigint[], %(owners)s::text[], %(codes)s::text[])
           WITH ORDINALITY AS mine (tenant_id, operation_id, fence, lease_owner, outcome_code, place)
      JOIN work_item w ON w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence
           AND w.state = 'claimed' AND w.lease_owner = mine.lease_owner AND w.effect_fence IS DISTINCT FROM w.fence
     ORDER BY mine.place FOR UPDATE OF w)
UPDATE work_item w
   SET state = 'quarantined', outcome_code = mine.outcome_code, lease_owner = NULL, lease_expires_at = NULL
  FROM mine
 WHERE w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence AND w.state = 'claimed'
RETURNING mine.place, w.state;

-- name: release
-- Give back unfinished, only while not begun. Back to queued after a backoff that doubles with each attempt (half of it
-- jitter, an hour at most); at the ceiling to failed_terminal, or to unknown if an earlier claim may have acted. A
-- batch-mate whose turn never came (waiting) goes back at once; attempts never fall, so its claim is counted as unspent.
-- A row that does not come back: ownership lost, or begun.
WITH mine AS MATERIALIZED (
    SELECT w.tenant_id, w.operation_id, w.fence, mine.waiting AND w.waiting_in_worker AS waiting, mine.place
      FROM unnest(%(tenants)s::text[], %(operations)s::text[], %(fences)s::bigint[], %(owners)s::text[], %(waiting)s::boolean[])
           WITH ORDINALITY AS mine (tenant_id, operation_id, fence, lease_owner, waiting, place)
      JOIN work_item w ON w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence
           AND w.state = 'claimed' AND w.lease_owner = mine.lease_owner AND w.effect_fence IS DISTINCT FROM w.fence
     ORDER BY mine.place FOR UPDATE OF w)
UPDATE work_item w
   SET state = CASE WHEN mine.waiting OR w.attempts - w.unspent_attempts < t.attempts_ceiling THEN 'queued'
                    WHEN fencewatch.may_have_acted(w, t.target, (SELECT fencewatch.timeline())) THEN 'unknown'
                    ELSE 'failed_terminal' END,
       outcome_code = CASE WHEN mine.waiting OR w.attempts - w.unspent_attempts < t.attempts_ceiling THEN NULL ELSE 'attempts_used_up' END,
       max_attempts = CASE WHEN mine.waiting OR w.attempts - w.unspent_attempts < t.attempts_ceiling
                           THEN greatest(w.max_attempts, w.attempts + 1) ELSE w.max_attempts END,
       unspent_attempts = w.unspent_attempts + mine.waiting::int,
       available_at = CASE WHEN mine.waiting THEN clock_timestamp()
                           ELSE clock_timestamp() + least(interval '1 hour',
                                make_interval(secs => t.backoff_seconds * 2 ^ least(w.attempts - 1, 12) * (0.5 + random() / 2))) END,
       lease_owner = NULL, lease_expires_at = NULL
  FROM mine, job_type t
 WHERE w.tenant_id = mine.tenant_id AND w.operation_id = mine.operation_id AND w.fence = mine.fence AND w.state = 'claimed' AND t.name = w.job_type
RETURNING mine.place, w.state;

-- name: sweep
-- Move on what ran out of attempts and lease (functions.sql). Zero rows: nothing had, or another sweep is at it.
SELECT to_state AS state, count(*) AS moved FROM fencewatch.sweep(%(limit)s) GROUP BY to_state;
