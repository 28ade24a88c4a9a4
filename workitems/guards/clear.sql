-- Takes away every policy, trigger, function and right of ours, so that the files after it leave exactly what they say and
-- nothing of an earlier version. One transaction: nobody sees the state between.
DO $clear$
DECLARE
    found record;
    role text;
BEGIN
    FOR found IN SELECT p.polname, c.oid::regclass AS tab FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
                  WHERE pg_get_userbyid(c.relowner) = 'fencewatch_owner' LOOP
        EXECUTE format('DROP POLICY %I ON %s', found.polname, found.tab);
    END LOOP;
    FOR found IN SELECT t.tgname, c.oid::regclass AS tab FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
                  WHERE NOT t.tgisinternal AND pg_get_userbyid(c.relowner) = 'fencewatch_owner' LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', found.tgname, found.tab);
    END LOOP;
    -- The owner of a schema may drop what is in it, whoever owns that. In one statement: functions call each other by their
    -- parsed bodies, so that dropping one would take another with it that the list still names.
    EXECUTE (SELECT coalesce('DROP FUNCTION ' || string_agg(p.oid::regprocedure::text, ', ') || ' CASCADE', 'SELECT')
               FROM pg_proc p WHERE p.pronamespace = 'fencewatch'::regnamespace);
    FOREACH role IN ARRAY ARRAY['fencewatch_web', 'fencewatch_worker', 'fencewatch_reconciler', 'fencewatch_keeper',
                                'fencewatch_keeping', 'fencewatch_actions', 'public'] LOOP
        FOR found IN SELECT c.oid::regclass AS tab FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                      WHERE c.relkind IN ('r', 'p', 'v') AND pg_get_userbyid(c.relowner) = 'fencewatch_owner'
                        AND (n.nspname = 'fencewatch' OR n.nspname = 'public' AND c.relname !~ '^(auth|django)_') LOOP
            EXECUTE format('REVOKE ALL ON %s FROM %s', found.tab, role);   -- quoted, PUBLIC would be a role's name
        END LOOP;
        EXECUTE format('REVOKE ALL ON SCHEMA fencewatch FROM %s', role);
    END LOOP;
END
$clear$;
