-- Search by a raw operation id. The id comes masked, so that no statement text, parameter or server log holds it; the keys stay
-- here, so that no process outside can hash names by the dictionary. Each search is entered, and a person has 30 a minute.

-- Undo the mask of the web process: XOR with a keystream from the context key and a nonce that is used once.
CREATE OR REPLACE FUNCTION fencewatch.unmask(masked bytea, nonce bytea, place int) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    key fencewatch.context_key;
    plain bytea := masked;
    stream bytea;
BEGIN
    SELECT * INTO STRICT key FROM fencewatch.context_key k WHERE k.retired_at IS NULL;
    FOR i IN 0 .. octet_length(masked) - 1 LOOP
        IF i % 32 = 0 THEN
            stream := fencewatch.keyed_digest(key.inner_pad, key.outer_pad,
                                              'fencewatch/search/1'::bytea || nonce || int4send(place) || int4send(i / 32));
        END IF;
        plain := set_byte(plain, i, get_byte(masked, i) # get_byte(stream, i % 32));
    END LOOP;
    RETURN convert_from(plain, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR no_data_found THEN
    RETURN NULL;
END $$;

-- The digests that an operation may have in these tenants, under every key that they have. The raw id takes part in expressions
-- only: an extension that logs the statements inside functions sees digests.
CREATE OR REPLACE FUNCTION fencewatch.digests_of(masked bytea[], nonce bytea, tenants bytea[]) RETURNS bytea[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made bytea[] := '{}';
    plain text;
    key record;
BEGIN
    FOR place IN 1 .. coalesce(cardinality(masked), 0) LOOP
        plain := fencewatch.unmask(masked[place], nonce, place);
        CONTINUE WHEN plain IS NULL;
        FOR key IN SELECT k.tenant_id, k.inner_pad, k.outer_pad FROM public.tenant t JOIN fencewatch.tenant_key k USING (tenant_id)
                    WHERE t.tenant_digest = ANY (tenants) LOOP
            made := made || fencewatch.item_digest(key.inner_pad, key.outer_pad, key.tenant_id, plain);
        END LOOP;
    END LOOP;
    RETURN made;
END $$;

-- How many decisions of one kind and outcome a person had entered in the last minute.
CREATE OR REPLACE FUNCTION fencewatch.entered_in_a_minute(of_person bigint, of_verb text, of_outcome text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(DISTINCT e.xid) FROM public.audit_entry e
     WHERE e.actor = of_person AND e.verb = of_verb AND e.outcome = of_outcome AND e.at > (SELECT clock_timestamp()) - interval '1 minute'
$$;

-- Find the items that have one of these ids, in the tenants where the person may search: 21 digests at most. What retention
-- removed answers with how and when it ended. A refusal for haste is entered once a minute.
CREATE OR REPLACE FUNCTION fencewatch.search(masked bytea[], nonce bytea,
    OUT outcome text, OUT because text, OUT hits bytea[], OUT ended_state text, OUT ended_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    person bigint := fencewatch.context_user();
    open_tenants bytea[] := fencewatch.tenants_open_to('search');
    possible bytea[];
BEGIN
    hits := '{}';
    because := CASE WHEN cardinality(open_tenants) = 0 THEN 'not_permitted'
                    WHEN coalesce(octet_length(nonce) <> 16 OR cardinality(masked) NOT BETWEEN 1 AND 4, true) THEN 'not_understood'
                    -- two searches of one person at once would both count before either is entered
                    WHEN NOT pg_try_advisory_xact_lock(hashtextextended('fencewatch.search', person)) THEN 'one_at_a_time'
                    WHEN fencewatch.entered_in_a_minute(person, 'search', 'applied') >= 30 THEN 'too_many' END;
    IF because IS NOT NULL THEN
        outcome := CASE because WHEN 'one_at_a_time' THEN 'busy' ELSE 'refused' END;
        IF because <> 'too_many' OR fencewatch.entered_in_a_minute(person, 'search', 'refused') = 0 THEN
            PERFORM fencewatch.enter('search', outcome, because,
                                     of_tenant => CASE cardinality(open_tenants) WHEN 1 THEN open_tenants[1] END);
        END IF;
        RETURN;
    END IF;
    outcome := 'applied';
    possible := fencewatch.digests_of(masked, nonce, open_tenants);
    SELECT coalesce(array_agg(w.op_digest ORDER BY w.op_digest), '{}') INTO hits
      FROM (SELECT i.op_digest FROM public.work_item i WHERE i.op_digest = ANY (possible) ORDER BY i.op_digest LIMIT 21) w;
    -- one entry for each tenant that something was found in, so that its auditors read of it
    PERFORM fencewatch.enter('search', outcome, NULL, w.tenant_digest, w.op_digest, of_subject => '{"found": true}')
       FROM public.work_item w WHERE w.op_digest = ANY (hits);
    IF hits = '{}' THEN
        SELECT t.state, t.ended_at INTO ended_state, ended_at
          FROM public.tombstone t WHERE t.op_digest = ANY (possible) ORDER BY t.ended_at DESC LIMIT 1;
        PERFORM fencewatch.enter('search', outcome, CASE WHEN ended_state IS NULL THEN 'nothing_found' ELSE 'removed' END,
                                 of_tenant => CASE cardinality(open_tenants) WHEN 1 THEN open_tenants[1] END);
    END IF;
END $$;

CREATE POLICY actions_read ON tombstone FOR SELECT TO fencewatch_actions
    USING ((SELECT fencewatch.context_sees_all()) OR tenant_digest = ANY ((SELECT fencewatch.context_tenants())::bytea[]));
GRANT SELECT (op_digest, tenant_digest, state, ended_at) ON tombstone TO fencewatch_actions;
GRANT EXECUTE ON FUNCTION fencewatch.digests_of(bytea[], bytea, bytea[]),
    fencewatch.entered_in_a_minute(bigint, text, text) TO fencewatch_actions;
GRANT EXECUTE ON FUNCTION fencewatch.search(bytea[], bytea) TO fencewatch_web;
GRANT CREATE ON SCHEMA fencewatch TO fencewatch_actions;
ALTER FUNCTION fencewatch.search(bytea[], bytea) OWNER TO fencewatch_actions;
REVOKE CREATE ON SCHEMA fencewatch FROM fencewatch_actions;
