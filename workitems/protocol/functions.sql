-- The protocol's functions: those that producers in any language call, and those that run with other rights than the
-- caller's. What workers run as plain statements is in protocol.sql.

-- The tombstone of an identity under any key that its tenant still has, or nothing. Definer's rights: nobody else reads keys.
CREATE OR REPLACE FUNCTION fencewatch.tombstone_of(of_tenant text, of_operation text) RETURNS SETOF public.tombstone
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp ROWS 1 AS $$
    SELECT t.* FROM fencewatch.tenant_key k JOIN public.tombstone t
        ON t.op_digest = fencewatch.item_digest(k.inner_pad, k.outer_pad, of_tenant, of_operation)
     WHERE k.tenant_id = of_tenant AND EXISTS (SELECT FROM public.tombstone) AND fencewatch.worker_may(of_tenant)
     ORDER BY t.written_at DESC LIMIT 1
$$;

-- An identity that retention removed is never enqueued again: the row is left out, as it is where the key exists.
CREATE OR REPLACE FUNCTION fencewatch.never_again() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM public.tombstone) AND EXISTS (SELECT FROM fencewatch.tombstone_of(NEW.tenant_id, NEW.operation_id))
       AND NOT EXISTS (SELECT FROM public.work_item w WHERE w.tenant_id = NEW.tenant_id AND w.operation_id = NEW.operation_id) THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END $$;

-- A row goes only if its tombstone says the same of it, and is old enough that no enqueue can have missed it.
CREATE OR REPLACE FUNCTION fencewatch.only_buried() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_user <> 'fencewatch_keeping' OR NOT EXISTS (
           SELECT FROM public.tombstone t WHERE t.op_digest = OLD.op_digest AND t.payload_hash = OLD.payload_hash AND t.state = OLD.state
              AND t.fence = OLD.fence AND t.outcome_code IS NOT DISTINCT FROM OLD.outcome_code
              AND t.xid < pg_snapshot_xmin(pg_current_snapshot()) AND t.written_at < clock_timestamp() - interval '1 hour') THEN
        RAISE EXCEPTION 'work_item rows are never removed but by fencewatch.retire, after their tombstone' USING ERRCODE = 'FW003';
    END IF;
    RETURN OLD;
END $$;

-- Retire what ended longer ago than keep_days (one at least), at most max_rows a call, in two steps an hour apart: first a
-- tombstone beside the row, then the row. Between the two every enqueue sees the row, after it every enqueue sees the
-- tombstone, unless its transaction took its snapshot over an hour before. History stays.
CREATE OR REPLACE FUNCTION fencewatch.retire(keep_days int, max_rows int, OUT buried bigint, OUT removed bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF coalesce(keep_days < 1 OR max_rows < 1, true) THEN
        RAISE EXCEPTION 'ended work is kept for a day at least, and a call retires one row at least' USING ERRCODE = 'FW002';
    END IF;
    WITH gone AS MATERIALIZED (
        SELECT w.tenant_id, w.operation_id, w.fence FROM public.tombstone t JOIN public.work_item w ON w.op_digest = t.op_digest
         WHERE w.state IN ('succeeded', 'failed_terminal') AND t.payload_hash = w.payload_hash AND t.state = w.state AND t.fence = w.fence
           AND t.outcome_code IS NOT DISTINCT FROM w.outcome_code
           AND w.updated_at < (SELECT clock_timestamp()) - make_interval(days => keep_days)
           AND t.xid < pg_snapshot_xmin(pg_current_snapshot()) AND t.written_at < (SELECT clock_timestamp()) - interval '1 hour'
         ORDER BY w.tenant_id, w.operation_id LIMIT max_rows)
    DELETE FROM public.work_item w USING gone g
     WHERE w.tenant_id = g.tenant_id AND w.operation_id = g.operation_id AND w.fence = g.fence AND w.state IN ('succeeded', 'failed_terminal');
    GET DIAGNOSTICS removed = ROW_COUNT;
    INSERT INTO public.tombstone AS t (op_digest, tenant_digest, digest_key_version, item_id, job_type, payload_hash, state, outcome_code, fence, ended_at)
    SELECT w.op_digest, w.tenant_digest, w.digest_key_version, w.item_id, w.job_type, w.payload_hash, w.state, w.outcome_code, w.fence, w.updated_at
      FROM public.work_item w
     WHERE w.state IN ('succeeded', 'failed_terminal') AND w.updated_at < (SELECT clock_timestamp()) - make_interval(days => keep_days)
       AND NOT EXISTS (SELECT FROM public.tombstone b WHERE b.op_digest = w.op_digest AND b.state = w.state AND b.fence = w.fence
                          AND b.outcome_code IS NOT DISTINCT FROM w.outcome_code)
     ORDER BY w.op_digest LIMIT max_rows
    ON CONFLICT (op_digest) DO UPDATE SET state = excluded.state, outcome_code = excluded.outcome_code, fence = excluded.fence,
        ended_at = excluded.ended_at, written_at = clock_timestamp(), xid = pg_current_xact_id();
    GET DIAGNOSTICS buried = ROW_COUNT;
END $$;

-- Make the durable row. One row comes back:
--   enqueued  the row is new;
--   replay    the key exists with the same hash: its state and stored outcome, nothing scheduled;
--   conflict  the key exists with another hash: nothing changed.
-- Runs inside the caller's transaction: the row commits with the caller's business write, or not at all.
CREATE OR REPLACE FUNCTION fencewatch.enqueue(
    new_tenant text, new_operation text, new_hash bytea, new_ref text, new_type text DEFAULT 'legacy', not_before timestamptz DEFAULT NULL,
    OUT outcome text, OUT state text, OUT outcome_code text, OUT op_digest bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO public.work_item AS w (tenant_id, operation_id, payload_hash, payload_ref, job_type, available_at, max_attempts)
    VALUES (new_tenant, new_operation, new_hash, new_ref, new_type, coalesce(not_before, clock_timestamp()),
            coalesce((SELECT t.max_attempts FROM public.job_type t WHERE t.name = new_type), 1))
    ON CONFLICT (tenant_id, operation_id) DO NOTHING
    RETURNING 'enqueued', w.state, w.outcome_code, w.op_digest INTO outcome, state, outcome_code, op_digest;
    IF NOT FOUND THEN
        -- A statement of its own: it sees the row that won, even one committed a moment ago. The hash never changes, so
        -- reading it first and comparing after cannot race with a write.
        SELECT CASE WHEN w.payload_hash = new_hash THEN 'replay' ELSE 'conflict' END, w.state, w.outcome_code, w.op_digest
          INTO outcome, state, outcome_code, op_digest
          FROM public.work_item w WHERE w.tenant_id = new_tenant AND w.operation_id = new_operation;
        IF NOT FOUND THEN   -- removed by retention: its tombstone answers
            SELECT CASE WHEN t.payload_hash = new_hash THEN 'replay' ELSE 'conflict' END, t.state, t.outcome_code, t.op_digest
              INTO STRICT outcome, state, outcome_code, op_digest
              FROM fencewatch.tombstone_of(new_tenant, new_operation) t;
        END IF;
    END IF;
END $$;

-- The same for many, in one statement for the caller; answers in the order of the arrays. A key that stands twice in
-- the arrays is enqueued once: its later places are a replay or a conflict.
CREATE OR REPLACE FUNCTION fencewatch.enqueue_many(
    new_tenants text[], new_operations text[], new_hashes bytea[], new_refs text[], new_types text[], not_before timestamptz[])
RETURNS TABLE (place bigint, outcome text, state text, outcome_code text, op_digest bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made bytea[];
BEGIN
    WITH made_now AS (
        INSERT INTO public.work_item AS w (tenant_id, operation_id, payload_hash, payload_ref, job_type, available_at, max_attempts)
        SELECT n.tenant_id, n.operation_id, n.payload_hash, n.payload_ref, n.job_type, coalesce(n.not_before, clock_timestamp()), coalesce(t.max_attempts, 1)
          FROM (SELECT DISTINCT ON (u.tenant_id, u.operation_id) u.*
                  FROM unnest(new_tenants, new_operations, new_hashes, new_refs, new_types, not_before) WITH ORDINALITY
                       AS u (tenant_id, operation_id, payload_hash, payload_ref, job_type, not_before, place)
                 ORDER BY u.tenant_id, u.operation_id, u.place) n   -- key order: two callers with common keys do not deadlock
          LEFT JOIN public.job_type t ON t.name = n.job_type
         ORDER BY n.tenant_id, n.operation_id
        ON CONFLICT (tenant_id, operation_id) DO NOTHING
        RETURNING w.op_digest)
    SELECT array_agg(m.op_digest) INTO made FROM made_now m;
    RETURN QUERY
        SELECT u.place,
               CASE WHEN w.op_digest IN (SELECT unnest(made)) AND u.place = min(u.place) OVER (PARTITION BY u.tenant_id, u.operation_id) THEN 'enqueued'
                    WHEN coalesce(w.payload_hash, t.payload_hash) = u.payload_hash THEN 'replay'
                    ELSE 'conflict' END,
               coalesce(w.state, t.state), CASE WHEN w.state IS NULL THEN t.outcome_code ELSE w.outcome_code END, coalesce(w.op_digest, t.op_digest)
          FROM unnest(new_tenants, new_operations, new_hashes) WITH ORDINALITY AS u (tenant_id, operation_id, payload_hash, place)
          LEFT JOIN public.work_item w ON w.tenant_id = u.tenant_id AND w.operation_id = u.operation_id
          LEFT JOIN LATERAL fencewatch.tombstone_of(u.tenant_id, u.operation_id) t ON w.state IS NULL   -- removed by retention
         ORDER BY u.place;
END $$;

-- Put what a claim found out on record, under that claim: verb `reconcile` with its verdict, or `check` with the reason why
-- an input was refused. False: ownership lost, nothing recorded. Definer's rights: workers write no history of their own.
CREATE OR REPLACE FUNCTION fencewatch.note(
    of_tenant text, of_operation text, my_fence bigint, my_lease_owner text, noted_verb text, code text, noted_detail jsonb)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF noted_verb NOT IN ('reconcile', 'check') OR coalesce(code !~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$', true)
       OR length(noted_detail::text) > 8000 THEN
        RAISE EXCEPTION 'a note is a reconcile or a check, with a code and at most 8,000 characters of detail' USING ERRCODE = 'FW002';
    END IF;
    INSERT INTO public.work_event (item_id, tenant_digest, verb, state_before, state_after, fence, attempts, worker, outcome_code, detail)
    SELECT w.item_id, w.tenant_digest, noted_verb, w.state, w.state, w.fence, w.attempts, w.lease_owner, code, noted_detail
      FROM public.work_item w
     WHERE w.tenant_id = of_tenant AND w.operation_id = of_operation AND w.fence = my_fence AND w.state = 'claimed'
       AND fencewatch.worker_may(of_tenant)
       AND w.lease_owner = my_lease_owner
       FOR UPDATE;   -- holds the claim still until the entry commits
    RETURN FOUND;
END $$;

-- Keep what a claim that lost still had to say: verb `late_outcome` with the outcome that it would have written, or `rejected`
-- with the verb that found no row. It changes nothing: it is a worker's claim, not a proof, and is shown and given to
-- reconcilers as such. `known_claim` says whether history has that claim of that worker. One entry per fence, verb and
-- outcome; at most 20 an hour for one item. False: nothing kept, because the claim still holds, or there were too many.
CREATE OR REPLACE FUNCTION fencewatch.note_rejected(
    of_tenant text, of_operation text, my_fence bigint, my_lease_owner text, tried text, code text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    noted_verb text := CASE WHEN tried IN ('complete', 'fail', 'park') THEN 'late_outcome' ELSE 'rejected' END;
BEGIN
    IF tried NOT IN ('begin', 'heartbeat', 'complete', 'fail', 'release', 'park', 'quarantine') OR my_fence IS NULL
       OR code !~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$' THEN
        RAISE EXCEPTION 'a rejected write names the verb that it tried, its fence and an outcome code' USING ERRCODE = 'FW002';
    END IF;
    INSERT INTO public.work_event (item_id, tenant_digest, verb, state_before, state_after, fence, attempts, worker, outcome_code, detail)
    SELECT w.item_id, w.tenant_digest, noted_verb, w.state, w.state, my_fence, w.attempts, left(my_lease_owner, 200), code,
           jsonb_build_object('tried', tried, 'fence_now', w.fence, 'known_claim', EXISTS (
               SELECT FROM public.work_event e WHERE e.item_id = w.item_id AND e.fence = my_fence AND e.worker = my_lease_owner
                  AND e.verb IN ('claim', 'takeover')))
      FROM public.work_item w
     WHERE w.tenant_id = of_tenant AND w.operation_id = of_operation AND fencewatch.worker_may(of_tenant)
       AND NOT (w.fence = my_fence AND w.state = 'claimed' AND w.lease_owner IS NOT DISTINCT FROM my_lease_owner)
       AND NOT EXISTS (SELECT FROM public.work_event e WHERE e.item_id = w.item_id AND e.fence = my_fence AND e.verb = noted_verb
                          AND e.outcome_code IS NOT DISTINCT FROM code AND e.detail ->> 'tried' = tried)
       AND (SELECT count(*) FROM public.work_event e WHERE e.item_id = w.item_id AND e.verb IN ('rejected', 'late_outcome')
               AND e.at > (SELECT clock_timestamp()) - interval '1 hour') < 20;
    RETURN FOUND;
END $$;

-- Whether no failover from one timeline to a later one may have lost a claim: every step between is on record as lossless.
CREATE OR REPLACE FUNCTION fencewatch.nothing_lost(since bigint, until bigint) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE reached (timeline) AS (
        SELECT since
        UNION
        SELECT f.to_timeline FROM reached r JOIN public.lossless_failover f ON f.from_timeline = r.timeline
         WHERE f.confirmed_at IS NOT NULL AND f.withdrawn_at IS NULL)
    SELECT coalesce(bool_or(r.timeline = until), false) FROM reached r
$$;

-- Whether a failover since a timeline may have lost a claim: the server has another one now, and the steps between are not
-- on record as lossless (operations/failovers.sql). A statement asks for the timeline of now once, in a sub-select; each
-- parameter that gets one stands once in the body, else the function would not be inlined.
CREATE OR REPLACE FUNCTION fencewatch.may_be_lost(since bigint, timeline_now bigint) RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN CASE WHEN since = timeline_now THEN false ELSE NOT fencewatch.nothing_lost(since, fencewatch.timeline()) END;

-- Whether an earlier claim may have acted on an item: one had begun, or one held it that does not stamp, or one may
-- have been lost in a failover since the enqueue. An answer that cleared exactly this attempt lifts it. Type A is excepted,
-- since its effect and completion commit together; but it never stamps, so a stamp proves that the item began under
-- another target, which the job type had then.
CREATE OR REPLACE FUNCTION fencewatch.may_have_acted(item public.work_item, target text, timeline_now bigint) RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN (item.effect_fence IS NOT NULL OR target <> 'A' AND (item.foreign_held OR fencewatch.may_be_lost(item.enqueue_timeline, timeline_now)))
       AND item.cleared_for_attempt IS DISTINCT FROM item.attempts;

-- Move on what ran out of attempts and lease, at most max_rows at a time. Never begun under a claim that stamps: queued
-- again, or failed_terminal (never_begun) at the job type's ceiling. Anything else: unknown. SKIP LOCKED, so a sweep never
-- waits: two at once share the rows, and of a sweep and a late completion whoever holds the row's lock wins. No advisory
-- lock: any role that may log in could take that one and keep it.
CREATE OR REPLACE FUNCTION fencewatch.sweep(max_rows int) RETURNS TABLE (swept bytea, to_state text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    WITH ran_out AS MATERIALIZED (
        SELECT w.tenant_id, w.operation_id, w.fence, t.backoff_seconds,
               CASE WHEN w.stamping_fence IS DISTINCT FROM w.fence OR w.effect_fence = w.fence OR t.name IS NULL THEN 'unknown'
                    WHEN w.attempts - w.unspent_attempts < t.attempts_ceiling THEN 'queued'
                    WHEN fencewatch.may_have_acted(w, t.target, (SELECT fencewatch.timeline())) THEN 'unknown'
                    ELSE 'failed_terminal' END AS next_state
          FROM public.work_item w LEFT JOIN public.job_type t ON t.name = w.job_type
         WHERE w.state = 'claimed' AND w.attempts > 0 AND w.attempts >= w.max_attempts AND w.lease_expires_at < (SELECT clock_timestamp())
         ORDER BY w.tenant_id, w.operation_id
         LIMIT max_rows
           FOR UPDATE OF w SKIP LOCKED)
    UPDATE public.work_item w
       SET state = r.next_state,
           outcome_code = CASE r.next_state WHEN 'failed_terminal' THEN 'never_begun' END,
           max_attempts = CASE r.next_state WHEN 'queued' THEN w.attempts + 1 ELSE w.max_attempts END,
           available_at = CASE r.next_state WHEN 'queued' THEN clock_timestamp() + make_interval(secs => r.backoff_seconds) ELSE w.available_at END
      FROM ran_out r
     WHERE w.tenant_id = r.tenant_id AND w.operation_id = r.operation_id AND w.fence = r.fence AND w.state = 'claimed'
    RETURNING w.op_digest, w.state;
END $$;
