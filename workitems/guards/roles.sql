-- Roles are cluster-wide: a DBA runs this once per cluster and database, as a superuser or as a role with CREATEROLE that
-- owns the database. `manage.py roles` prints it with the passwords filled in for the {{names}}; the demo and the tests run the same text.
-- Running it again changes nothing but the passwords.

DO $roles$
DECLARE
    wanted record;
BEGIN
    FOR wanted IN SELECT * FROM (VALUES
        -- role, may log in
        ('fencewatch_owner', false),        -- owns every object
        ('fencewatch_actions', false),      -- owns the operators' functions; no table, no BYPASSRLS
        ('fencewatch_keeping', false),      -- owns the keeper's functions; no table, no BYPASSRLS
        ('fencewatch_migrator', true),      -- becomes fencewatch_owner to migrate
        ('fencewatch_web', true),           -- reads what pages show
        ('fencewatch_accounts', true),      -- users and sessions, nothing else
        ('fencewatch_worker', true),        -- enqueues and works
        ('fencewatch_reconciler', true),    -- verdicts and payload checks
        ('fencewatch_keeper', true)         -- sweeps
    ) AS r (name, logs_in) LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted.name) THEN
            EXECUTE format('CREATE ROLE %I', wanted.name);
        END IF;
        EXECUTE format('ALTER ROLE %I %s NOINHERIT NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS NOREPLICATION',
                       wanted.name, CASE WHEN wanted.logs_in THEN 'LOGIN' ELSE 'NOLOGIN' END);
    END LOOP;
END
$roles$;

ALTER ROLE fencewatch_migrator PASSWORD '{{migrator_password}}';
ALTER ROLE fencewatch_web PASSWORD '{{web_password}}';
ALTER ROLE fencewatch_accounts PASSWORD '{{accounts_password}}';
ALTER ROLE fencewatch_worker PASSWORD '{{worker_password}}';
ALTER ROLE fencewatch_reconciler PASSWORD '{{reconciler_password}}';
ALTER ROLE fencewatch_keeper PASSWORD '{{keeper_password}}';

-- What every session of a role starts with, also behind a pooler, which hands on no startup option of its clients.
DO $sessions$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['fencewatch_web', 'fencewatch_accounts', 'fencewatch_worker', 'fencewatch_reconciler',
                                'fencewatch_keeper', 'fencewatch_migrator'] LOOP
        -- Under REPEATABLE READ a claim fails where READ COMMITTED takes the next row, whatever the database's default is.
        EXECUTE format('ALTER ROLE %I SET default_transaction_isolation = ''read committed''', role);
        EXECUTE format('ALTER ROLE %I SET timezone = ''UTC''', role);
    END LOOP;
    FOREACH role IN ARRAY ARRAY['fencewatch_web', 'fencewatch_accounts'] LOOP
        EXECUTE format('ALTER ROLE %I SET statement_timeout = ''5s''', role);
        EXECUTE format('ALTER ROLE %I SET lock_timeout = ''2s''', role);
        EXECUTE format('ALTER ROLE %I SET idle_in_transaction_session_timeout = ''15s''', role);
    END LOOP;
END
$sessions$;

-- What the server writes into its own log of a failed or slow statement of these roles: neither the row, which the detail
-- of a violated constraint quotes, nor the statement, nor its parameters. Only a superuser can choose that.
DO $server_log$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['fencewatch_web', 'fencewatch_accounts', 'fencewatch_worker', 'fencewatch_reconciler',
                                'fencewatch_keeper', 'fencewatch_migrator'] LOOP
        EXECUTE format('ALTER ROLE %I SET log_error_verbosity = terse', role);
        EXECUTE format('ALTER ROLE %I SET log_min_error_statement = panic', role);
        EXECUTE format('ALTER ROLE %I SET log_parameter_max_length = 0', role);
        EXECUTE format('ALTER ROLE %I SET log_parameter_max_length_on_error = 0', role);
    END LOOP;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'the server log may quote rows and parameters of failed statements: a superuser can set log_error_verbosity, log_min_error_statement and log_parameter_max_length for the fencewatch roles';
END
$server_log$;

-- INHERIT FALSE: the migrator has to say SET ROLE, so nothing is owned by accident.
GRANT fencewatch_owner TO fencewatch_migrator WITH INHERIT FALSE, SET TRUE;
GRANT fencewatch_actions TO fencewatch_owner WITH INHERIT FALSE, SET TRUE;
GRANT fencewatch_keeping TO fencewatch_owner WITH INHERIT FALSE, SET TRUE;

-- No temporary tables to shadow ours with, no objects in public but the owner's.
DO $database$
BEGIN
    EXECUTE format('REVOKE TEMPORARY, CREATE ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format('GRANT CREATE ON DATABASE %I TO fencewatch_owner', current_database());
END
$database$;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;   -- other programs in this database keep reading their tables
GRANT USAGE, CREATE ON SCHEMA public TO fencewatch_owner;
GRANT USAGE ON SCHEMA public TO fencewatch_migrator, fencewatch_actions, fencewatch_keeping, fencewatch_web,
    fencewatch_accounts, fencewatch_worker, fencewatch_reconciler, fencewatch_keeper;

-- Nor large objects, which every role could otherwise fill the disk with. Only a superuser can take that right away.
DO $large_objects$
BEGIN
    REVOKE EXECUTE ON FUNCTION lo_from_bytea(oid, bytea), lo_creat(int), lo_create(oid), lo_put(oid, bigint, bytea) FROM PUBLIC;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'large objects stay open to every role: a superuser can revoke lo_from_bytea, lo_creat, lo_create, lo_put';
END
$large_objects$;
