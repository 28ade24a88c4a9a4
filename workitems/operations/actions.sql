-- The operators' verbs. Each acts only on the state and the fence that the person saw, answers applied, changed, refused or
-- busy and why, and never raises for a business answer: the entry of a refusal is kept. Applied changes are entered by the
-- trigger that writes the history, in the same statement.

-- Enter an answer that changed nothing.
CREATE OR REPLACE FUNCTION fencewatch.enter_answer(
    of_verb text, of_outcome text, of_because text, of_tenant bytea, of_item bytea, seen_state text, seen_fence bigint, why text)
RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$ SELECT fencewatch.enter(of_verb, of_outcome, of_because, of_tenant, of_item, was_state => left(seen_state, 40), was_fence => seen_fence,
                              why => left(why, 2000)) $$;

-- Revoke: end the claim that the page showed. Never begun under it, or type A: queued again while the job type allows one
-- more attempt. Anything else: unknown. The fence rises, so that whoever held the claim can no longer write.
CREATE OR REPLACE FUNCTION fencewatch.revoke(of_item bytea, seen_state text, seen_fence bigint, why text,
    OUT outcome text, OUT because text, OUT state_now text, OUT fence_now bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    of_tenant bytea;
BEGIN
    -- Row security shows this role what the signed context opens: another tenant's item and none at all are one answer.
    SELECT w.tenant_digest, w.state, w.fence INTO of_tenant, state_now, fence_now FROM public.work_item w WHERE w.op_digest = of_item;
    because := CASE WHEN of_tenant IS NULL THEN 'no_such_item'
                    WHEN NOT fencewatch.person_may('revoke', of_tenant) THEN 'not_permitted'
                    WHEN coalesce(why !~ '\S', true) OR char_length(why) > 2000 THEN 'reason_missing'
                    WHEN fencewatch.names_the_item(of_item, why) THEN 'reason_names_the_item' END;
    IF because IS NOT NULL THEN
        outcome := 'refused';
        PERFORM fencewatch.enter_answer('revoke', outcome, because, of_tenant, of_item, seen_state, seen_fence, NULL);
        RETURN;
    END IF;
    PERFORM set_config('fencewatch.action', jsonb_build_object('verb', 'revoke', 'why', why)::text, true);
    BEGIN
        UPDATE public.work_item w
           SET state = d.next_state, fence = w.fence + 1, outcome_code = CASE d.next_state WHEN 'unknown' THEN 'revoked' END,
               max_attempts = CASE d.next_state WHEN 'queued' THEN greatest(w.max_attempts, w.attempts + 1) ELSE w.max_attempts END,
               available_at = CASE d.next_state WHEN 'queued' THEN clock_timestamp() ELSE w.available_at END
          FROM public.work_item seen LEFT JOIN public.job_type t ON t.name = seen.job_type
         CROSS JOIN LATERAL (SELECT CASE WHEN seen.attempts - seen.unspent_attempts < t.attempts_ceiling
                                          AND (t.target = 'A' OR seen.effect_fence IS DISTINCT FROM seen.fence AND seen.stamping_fence = seen.fence)
                                         THEN 'queued' ELSE 'unknown' END AS next_state) d
         WHERE seen.op_digest = of_item AND w.tenant_id = seen.tenant_id AND w.operation_id = seen.operation_id
           AND w.op_digest = of_item AND w.state = 'claimed' AND w.state = seen_state AND w.fence = seen_fence
           -- what decided is still so: otherwise the row comes back as changed
           AND w.effect_fence IS NOT DISTINCT FROM seen.effect_fence AND w.attempts = seen.attempts
        RETURNING 'applied', w.state, w.fence INTO outcome, state_now, fence_now;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        outcome := 'busy';
        because := 'locked';
    END;
    PERFORM set_config('fencewatch.action', '', true);
    IF outcome IS NULL THEN
        outcome := 'changed';
        because := 'changed_meanwhile';
        SELECT w.state, w.fence INTO state_now, fence_now FROM public.work_item w WHERE w.op_digest = of_item;
    END IF;
    IF outcome <> 'applied' THEN
        PERFORM fencewatch.enter_answer('revoke', outcome, because, of_tenant, of_item, seen_state, seen_fence, why);
    END IF;
END $$;

-- Whether a text holds the item's raw id, which no entry may. Definer's rights: the operators' role cannot read ids.
CREATE OR REPLACE FUNCTION fencewatch.names_the_item(of_item bytea, what text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(bool_or(char_length(w.operation_id) >= 4 AND strpos(lower(what), lower(w.operation_id)) > 0), false)
      FROM public.work_item w WHERE w.op_digest = of_item
$$;

-- Actions see and change what the signed context opens, and leave claimed only: every other arrow is refused.
CREATE POLICY actions_read ON work_item FOR SELECT TO fencewatch_actions
    USING ((SELECT fencewatch.context_sees_all()) OR tenant_digest = ANY ((SELECT fencewatch.context_tenants())::bytea[]));
CREATE POLICY actions_revoke ON work_item FOR UPDATE TO fencewatch_actions
    USING (state = 'claimed' AND ((SELECT fencewatch.context_sees_all()) OR tenant_digest = ANY ((SELECT fencewatch.context_tenants())::bytea[])))
    WITH CHECK (state IN ('queued', 'unknown'));
GRANT SELECT (tenant_id, operation_id, op_digest, tenant_digest, job_type, state, fence, attempts, max_attempts, unspent_attempts,
              effect_fence, stamping_fence, available_at) ON work_item TO fencewatch_actions;
GRANT UPDATE (state, fence, outcome_code, max_attempts, available_at) ON work_item TO fencewatch_actions;
GRANT SELECT ON job_type TO fencewatch_actions;
GRANT EXECUTE ON FUNCTION fencewatch.context_sees_all(), fencewatch.context_tenants(), fencewatch.names_the_item(bytea, text),
    fencewatch.fence_base(), fencewatch.held_types(),
    fencewatch.enter_answer(text, text, text, bytea, bytea, text, bigint, text) TO fencewatch_actions;
GRANT EXECUTE ON FUNCTION fencewatch.revoke(bytea, text, bigint, text) TO fencewatch_web;
GRANT CREATE ON SCHEMA fencewatch TO fencewatch_actions;
ALTER FUNCTION fencewatch.revoke(bytea, text, bigint, text) OWNER TO fencewatch_actions;
REVOKE CREATE ON SCHEMA fencewatch FROM fencewatch_actions;
