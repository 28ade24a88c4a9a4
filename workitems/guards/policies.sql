-- Who may see and write what. Row security is FORCEd: the owner is bound too, by policies of its own.

ALTER TABLE work_item ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE work_event ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE tenant ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE membership ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE payload ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

-- Owner: migrations, and the definer triggers and functions that it owns. It may append to the history, not change it.
CREATE POLICY owner_all ON work_item TO fencewatch_owner USING (true) WITH CHECK (true);
CREATE POLICY owner_append ON work_event FOR INSERT TO fencewatch_owner WITH CHECK (true);
CREATE POLICY owner_read ON work_event FOR SELECT TO fencewatch_owner USING (true);
CREATE POLICY owner_all ON tenant TO fencewatch_owner USING (true) WITH CHECK (true);
CREATE POLICY owner_read ON membership FOR SELECT TO fencewatch_owner USING (true);
CREATE POLICY owner_all ON payload TO fencewatch_owner USING (true) WITH CHECK (true);

-- Web: by signed context. Each function stands in a sub-select, so that it runs once a statement and never per row; the
-- scope over all tenants is a branch of its own, so that nobody carries a list of a thousand.
CREATE POLICY web_by_context ON work_item FOR SELECT TO fencewatch_web
    USING ((SELECT fencewatch.context_sees_all()) OR tenant_digest = ANY ((SELECT fencewatch.context_tenants())::bytea[]));
CREATE POLICY web_by_context ON work_event FOR SELECT TO fencewatch_web
    USING ((SELECT fencewatch.context_sees_all()) OR tenant_digest = ANY ((SELECT fencewatch.context_tenants())::bytea[]));
CREATE POLICY web_by_context ON tenant FOR SELECT TO fencewatch_web
    USING ((SELECT fencewatch.context_sees_all()) OR tenant_digest = ANY ((SELECT fencewatch.context_tenants())::bytea[]));
CREATE POLICY web_own ON membership FOR SELECT TO fencewatch_web USING (user_id = (SELECT fencewatch.context_user()));

-- Workers: of every tenant, or of those that worker_scope names; the first branch keeps fencewatch_worker itself from asking.
-- What may not be claimed yet is hidden from every UPDATE and FOR UPDATE, so also from the article's own claim:
-- what is not due, what is on hold, and, for workers that do not stamp, every job type that is not open to them.
CREATE POLICY worker_read ON work_item FOR SELECT TO fencewatch_worker
    USING ((SELECT session_user = 'fencewatch_worker') OR (SELECT NOT fencewatch.worker_is_scoped())
           OR tenant_id = ANY ((SELECT fencewatch.worker_tenants())::text[]));
CREATE POLICY worker_enqueue ON work_item FOR INSERT TO fencewatch_worker
    WITH CHECK (state IN ('queued', 'quarantined') AND ((SELECT session_user = 'fencewatch_worker') OR (SELECT NOT fencewatch.worker_is_scoped())
           OR tenant_id = ANY ((SELECT fencewatch.worker_tenants())::text[])));
CREATE POLICY worker_write ON work_item FOR UPDATE TO fencewatch_worker
    USING ((state <> 'queued' OR (available_at <= (SELECT clock_timestamp()) AND job_type <> ALL ((SELECT fencewatch.held_types())::text[])))
           AND ((SELECT coalesce(current_setting('fencewatch.worker', true), '') = 'stamps')
                OR job_type = ANY ((SELECT fencewatch.foreign_types())::text[]))
           AND ((SELECT session_user = 'fencewatch_worker') OR (SELECT NOT fencewatch.worker_is_scoped())
           OR tenant_id = ANY ((SELECT fencewatch.worker_tenants())::text[])))
    WITH CHECK (true);
CREATE POLICY worker_all ON payload TO fencewatch_worker
    USING ((SELECT session_user = 'fencewatch_worker') OR (SELECT NOT fencewatch.worker_is_scoped())
           OR tenant_id = ANY ((SELECT fencewatch.worker_tenants())::text[]))
    WITH CHECK ((SELECT session_user = 'fencewatch_worker') OR (SELECT NOT fencewatch.worker_is_scoped())
           OR tenant_id = ANY ((SELECT fencewatch.worker_tenants())::text[]));

-- Keeper: only what ran out of lease and attempts.
CREATE POLICY keeping_read ON work_item FOR SELECT TO fencewatch_keeping USING (true);
CREATE POLICY keeping_sweep ON work_item FOR UPDATE TO fencewatch_keeping
    USING (state = 'claimed' AND attempts >= max_attempts AND lease_expires_at < (SELECT clock_timestamp()))
    WITH CHECK (state IN ('queued', 'unknown', 'failed_terminal'));

-- Retention: only what ended, and only by fencewatch.retire. Nobody reads tombstones but the functions that answer from them.
ALTER TABLE tombstone ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY owner_read ON tombstone FOR SELECT TO fencewatch_owner USING (true);
CREATE POLICY keeping_bury ON tombstone TO fencewatch_keeping USING (true) WITH CHECK (true);
CREATE POLICY keeping_retire ON work_item FOR DELETE TO fencewatch_keeping USING (state IN ('succeeded', 'failed_terminal'));

-- ---------------------------------------------------------------------------------------------------------------
-- Rights
-- ---------------------------------------------------------------------------------------------------------------
GRANT USAGE ON SCHEMA fencewatch TO fencewatch_web, fencewatch_worker, fencewatch_keeper, fencewatch_keeping,
    fencewatch_actions, fencewatch_reconciler;

-- what trigger functions and policies call in the writer's name
GRANT EXECUTE ON FUNCTION fencewatch.worker_is_scoped(), fencewatch.worker_tenants() TO fencewatch_worker;
GRANT EXECUTE ON FUNCTION fencewatch.fence_base(), fencewatch.timeline(), fencewatch.held_types(), fencewatch.foreign_types(),
    fencewatch.may_be_lost(bigint, bigint), fencewatch.may_have_acted(work_item, text, bigint) TO fencewatch_worker, fencewatch_keeping;

GRANT SELECT (op_digest, tenant_digest, digest_key_version, item_id, job_type, state, fence, lease_owner, lease_expires_at, attempts,
              max_attempts, unspent_attempts, outcome_code, payload_hash, updated_at, available_at, enqueued_at, enqueue_timeline, claimed_at,
              stamping_fence, foreign_held, effect_fence, effect_at, first_effect_at, progress, progress_at, waiting_in_worker,
              cleared_for_attempt)
    ON work_item TO fencewatch_web;
GRANT SELECT (tenant_digest, label) ON tenant TO fencewatch_web;
GRANT SELECT (membership_id, user_id, tenant_digest, role) ON membership TO fencewatch_web;
GRANT SELECT ON work_event, job_type TO fencewatch_web;
GRANT EXECUTE ON FUNCTION fencewatch.context_parts(), fencewatch.context_user(), fencewatch.context_sees_all(),
    fencewatch.context_tenants(), fencewatch.reference_digest(bytea), fencewatch.timeline() TO fencewatch_web;

GRANT SELECT ON work_item, job_type TO fencewatch_worker;
GRANT INSERT (tenant_id, operation_id, payload_hash, payload_ref, state, max_attempts, outcome_code, job_type, available_at)
    ON work_item TO fencewatch_worker;
GRANT UPDATE (state, fence, lease_owner, lease_expires_at, attempts, max_attempts, unspent_attempts, outcome_code, updated_at,
              available_at, stamping_fence, effect_fence, effect_at, progress, waiting_in_worker)
    ON work_item TO fencewatch_worker;
GRANT SELECT, INSERT ON payload TO fencewatch_worker;
GRANT EXECUTE ON FUNCTION fencewatch.enqueue(text, text, bytea, text, text, timestamptz),
    fencewatch.enqueue_many(text[], text[], bytea[], text[], text[], timestamptz[]),
    fencewatch.note(text, text, bigint, text, text, text, jsonb), fencewatch.tombstone_of(text, text),
    fencewatch.note_rejected(text, text, bigint, text, text, text) TO fencewatch_worker;

GRANT SELECT ON work_item, job_type TO fencewatch_keeping;
GRANT UPDATE (state, outcome_code, max_attempts, available_at, updated_at) ON work_item TO fencewatch_keeping;
GRANT DELETE ON work_item TO fencewatch_keeping;
GRANT SELECT, INSERT, UPDATE ON tombstone TO fencewatch_keeping;
GRANT EXECUTE ON FUNCTION fencewatch.sweep(int), fencewatch.retire(int, int) TO fencewatch_keeper;
-- They run with the rights of a role that owns nothing else: the policy keeping_sweep binds it. A new owner of a
-- function needs CREATE on its schema, for this moment only.
GRANT CREATE ON SCHEMA fencewatch TO fencewatch_keeping;
ALTER FUNCTION fencewatch.sweep(int) OWNER TO fencewatch_keeping;
ALTER FUNCTION fencewatch.retire(int, int) OWNER TO fencewatch_keeping;
REVOKE CREATE ON SCHEMA fencewatch FROM fencewatch_keeping;
