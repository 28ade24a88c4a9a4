-- A failover that lost nothing. After a promotion every open item that was enqueued before it reconciles before it acts, since
-- the claim that acted may be lost. Two persons who looked (the old primary's last position was replayed) may lift that for
-- one step from timeline to timeline: one proposes with evidence, another confirms before the proposal expires.

-- The timelines from which nothing was lost up to now, this one among them: read once a statement by the pages.
CREATE OR REPLACE FUNCTION fencewatch.safe_timelines() RETURNS bigint[]
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE reached (timeline) AS (
        SELECT fencewatch.timeline()
        UNION
        SELECT f.from_timeline FROM reached r JOIN public.lossless_failover f ON f.to_timeline = r.timeline
         WHERE f.confirmed_at IS NOT NULL AND f.withdrawn_at IS NULL)
    SELECT array_agg(r.timeline) FROM reached r
$$;

-- One human with two accounts is one person: the same account, or the same e-mail address.
CREATE OR REPLACE FUNCTION fencewatch.same_person(one bigint, other bigint) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT one = other OR EXISTS (SELECT FROM public.auth_user a JOIN public.auth_user b ON lower(btrim(a.email)) = lower(btrim(b.email))
                                   WHERE a.id = one AND b.id = other AND btrim(a.email) <> '')
$$;

-- Each verb returns applied, changed, refused or busy and why; it never raises for a business answer, so that the entry
-- of a refusal is kept.
CREATE OR REPLACE FUNCTION fencewatch.propose_lossless(since bigint, until bigint, why text, proof text,
    OUT outcome text, OUT because text, OUT failover bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    because := CASE WHEN NOT fencewatch.person_may('propose_lossless', NULL) THEN 'not_permitted'
                    WHEN coalesce(why !~ '\S', true) OR char_length(why) > 2000 THEN 'reason_missing'
                    WHEN coalesce(proof !~ '\S', true) OR char_length(proof) > 8000 THEN 'evidence_missing'
                    WHEN coalesce(since < 1 OR until <= since OR until > fencewatch.timeline(), true) THEN 'no_such_failover' END;
    outcome := CASE WHEN because IS NULL THEN 'applied' ELSE 'refused' END;
    IF because IS NULL THEN
        INSERT INTO public.lossless_failover (from_timeline, to_timeline, proposed_by, expires_at)
        VALUES (since, until, fencewatch.context_user(), clock_timestamp() + interval '24 hours')
        RETURNING failover_id INTO failover;
    END IF;
    PERFORM fencewatch.enter('propose_lossless', outcome, because,
                             of_subject => jsonb_build_object('failover', failover, 'from_timeline', since, 'to_timeline', until),
                             why => left(why, 2000), proof => left(coalesce(proof, ''), 8000));
END $$;

CREATE OR REPLACE FUNCTION fencewatch.confirm_lossless(of_failover bigint, why text, OUT outcome text, OUT because text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    person bigint := fencewatch.context_user();
    found_row public.lossless_failover;
BEGIN
    SELECT * INTO found_row FROM public.lossless_failover f WHERE f.failover_id = of_failover FOR UPDATE;
    because := CASE WHEN NOT fencewatch.person_may('confirm_lossless', NULL) THEN 'not_permitted'
                    WHEN found_row.failover_id IS NULL THEN 'no_such_proposal'
                    WHEN coalesce(why !~ '\S', true) OR char_length(why) > 2000 THEN 'reason_missing'
                    WHEN found_row.withdrawn_at IS NOT NULL THEN 'withdrawn'
                    WHEN found_row.confirmed_at IS NOT NULL THEN 'confirmed_already'
                    WHEN found_row.expires_at <= clock_timestamp() THEN 'expired'
                    WHEN fencewatch.same_person(found_row.proposed_by, person) THEN 'same_person' END;
    outcome := CASE WHEN because IS NULL THEN 'applied' WHEN because IN ('withdrawn', 'confirmed_already') THEN 'changed' ELSE 'refused' END;
    IF because IS NULL THEN
        UPDATE public.lossless_failover f SET confirmed_at = clock_timestamp(), confirmed_by = person
         WHERE f.failover_id = of_failover AND f.confirmed_at IS NULL AND f.withdrawn_at IS NULL;
    END IF;
    PERFORM fencewatch.enter('confirm_lossless', outcome, because,
                             of_subject => jsonb_build_object('failover', of_failover, 'from_timeline', found_row.from_timeline,
                                                              'to_timeline', found_row.to_timeline),
                             why => left(why, 2000), other_person => found_row.proposed_by);
END $$;

-- Either person, or any other who may, takes it back: doubt counts again from the next claim on.
CREATE OR REPLACE FUNCTION fencewatch.withdraw_lossless(of_failover bigint, why text, OUT outcome text, OUT because text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_row public.lossless_failover;
BEGIN
    SELECT * INTO found_row FROM public.lossless_failover f WHERE f.failover_id = of_failover FOR UPDATE;
    because := CASE WHEN NOT fencewatch.person_may('withdraw_lossless', NULL) THEN 'not_permitted'
                    WHEN found_row.failover_id IS NULL THEN 'no_such_proposal'
                    WHEN coalesce(why !~ '\S', true) OR char_length(why) > 2000 THEN 'reason_missing'
                    WHEN found_row.withdrawn_at IS NOT NULL THEN 'withdrawn' END;
    outcome := CASE WHEN because IS NULL THEN 'applied' WHEN because = 'withdrawn' THEN 'changed' ELSE 'refused' END;
    IF because IS NULL THEN
        UPDATE public.lossless_failover f SET withdrawn_at = clock_timestamp(), withdrawn_by = fencewatch.context_user()
         WHERE f.failover_id = of_failover AND f.withdrawn_at IS NULL;
    END IF;
    PERFORM fencewatch.enter('withdraw_lossless', outcome, because,
                             of_subject => jsonb_build_object('failover', of_failover, 'from_timeline', found_row.from_timeline,
                                                              'to_timeline', found_row.to_timeline),
                             why => left(why, 2000));
END $$;

CREATE TRIGGER never_removed BEFORE DELETE ON lossless_failover FOR EACH ROW EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON lossless_failover FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
ALTER TABLE lossless_failover ENABLE ALWAYS TRIGGER never_removed, ENABLE ALWAYS TRIGGER never_truncated;

ALTER TABLE lossless_failover ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY owner_read ON lossless_failover FOR SELECT TO fencewatch_owner USING (true);
CREATE POLICY actions_all ON lossless_failover TO fencewatch_actions USING (true) WITH CHECK (true);
CREATE POLICY web_by_context ON lossless_failover FOR SELECT TO fencewatch_web USING ((SELECT fencewatch.context_sees_all()));
GRANT SELECT, INSERT, UPDATE ON lossless_failover TO fencewatch_actions;
GRANT SELECT ON lossless_failover TO fencewatch_web;
GRANT EXECUTE ON FUNCTION fencewatch.nothing_lost(bigint, bigint), fencewatch.safe_timelines()
    TO fencewatch_web, fencewatch_worker, fencewatch_keeping, fencewatch_actions;
GRANT EXECUTE ON FUNCTION fencewatch.same_person(bigint, bigint), fencewatch.timeline(),
    fencewatch.context_user(), fencewatch.context_parts() TO fencewatch_actions;
GRANT EXECUTE ON FUNCTION fencewatch.propose_lossless(bigint, bigint, text, text), fencewatch.confirm_lossless(bigint, text),
    fencewatch.withdraw_lossless(bigint, text) TO fencewatch_web;
GRANT CREATE ON SCHEMA fencewatch TO fencewatch_actions;
ALTER FUNCTION fencewatch.propose_lossless(bigint, bigint, text, text) OWNER TO fencewatch_actions;
ALTER FUNCTION fencewatch.confirm_lossless(bigint, text) OWNER TO fencewatch_actions;
ALTER FUNCTION fencewatch.withdraw_lossless(bigint, text) OWNER TO fencewatch_actions;
REVOKE CREATE ON SCHEMA fencewatch FROM fencewatch_actions;
