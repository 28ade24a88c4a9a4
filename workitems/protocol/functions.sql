-- The protocol's functions: those that producers in any language call, and those that run with other rights than the
-- caller's. What workers run as plain statements is in protocol.sql.

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
          INTO STRICT outcome, state, outcome_code, op_digest
          FROM public.work_item w WHERE w.tenant_id = new_tenant AND w.operation_id = new_operation;
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
                    WHEN w.payload_hash = u.payload_hash THEN 'replay'
                    ELSE 'conflict' END,
               w.state, w.outcome_code, w.op_digest
          FROM unnest(new_tenants, new_operations, new_hashes) WITH ORDINALITY AS u (tenant_id, operation_id, payload_hash, place)
          JOIN public.work_item w ON w.tenant_id = u.tenant_id AND w.operation_id = u.operation_id
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
       AND w.lease_owner = my_lease_owner
       FOR UPDATE;   -- holds the claim still until the entry commits
    RETURN FOUND;
END $$;

-- Whether a failover since a timeline may have lost a claim: the server has another one now, and the steps between are not
-- on record as lossless (operations/failovers.sql).
CREATE OR REPLACE FUNCTION fencewatch.may_be_lost(since bigint) RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT CASE WHEN since = fencewatch.timeline() THEN false ELSE NOT fencewatch.nothing_lost(since, fencewatch.timeline()) END $$;

-- Whether an earlier claim may have acted on an item: one had begun, or one held it that does not stamp, or one may
-- have been lost in a failover since the enqueue. An answer that cleared exactly this attempt lifts it. Type A is excepted,
-- since its effect and completion commit together; but it never stamps, so a stamp proves that the item began under
-- another target, which the job type had then.
CREATE OR REPLACE FUNCTION fencewatch.may_have_acted(item public.work_item, target text) RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT (item.effect_fence IS NOT NULL OR target <> 'A' AND (item.foreign_held OR fencewatch.may_be_lost(item.enqueue_timeline)))
           AND item.cleared_for_attempt IS DISTINCT FROM item.attempts
$$;

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
                    WHEN fencewatch.may_have_acted(w, t.target) THEN 'unknown'
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
