-- What the server's catalog says about everything that decides, one line of text for each object and aspect: compared with
-- manifest.txt by drift.py. Whatever is in schema fencewatch counts, and in public what a role of ours owns; of tables of
-- others in the same database only what reaches into ours.
WITH role AS (SELECT oid, rolname AS name FROM pg_roles WHERE rolname LIKE 'fencewatch\_%%'),
ours AS (
    SELECT c.*, CASE n.nspname WHEN 'public' THEN '' ELSE n.nspname || '.' END || c.relname AS name
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
       AND (n.nspname = 'fencewatch'
            OR n.nspname = 'public' AND (c.relowner IN (SELECT oid FROM role) OR c.relname = ANY (%(known)s))
            OR EXISTS (SELECT FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent JOIN role r ON r.oid = p.relowner WHERE i.inhrelid = c.oid))
),
relation AS (SELECT * FROM ours WHERE relkind <> 'S'),
-- a right on a table, or on some of its columns
given AS (
    SELECT r.name, a.grantee, a.privilege_type || CASE WHEN a.is_grantable THEN ' with grant option' ELSE '' END AS privilege, NULL AS columns
      FROM ours r, aclexplode(r.relacl) a WHERE a.grantee <> r.relowner
    UNION ALL
    SELECT r.name, a.grantee, a.privilege_type || CASE WHEN a.is_grantable THEN ' with grant option' ELSE '' END,
           string_agg(t.attname, ', ' ORDER BY t.attname COLLATE "C")
      FROM relation r JOIN pg_attribute t ON t.attrelid = r.oid AND t.attnum > 0 AND NOT t.attisdropped, aclexplode(t.attacl) a
     GROUP BY r.name, a.grantee, a.privilege_type, a.is_grantable
),
-- settings that would change what a statement means or whom a rule binds; the others are a DBA's to choose
setting AS (
    SELECT s.setrole, split_part(entry, '=', 1) AS name, substr(entry, strpos(entry, '=') + 1) AS value, s.setdatabase <> 0 AS here
      FROM pg_db_role_setting s, unnest(s.setconfig) entry
     WHERE s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
       AND (s.setrole = 0 OR s.setrole IN (SELECT oid FROM role))
),
said (object, detail) AS (
    SELECT 'role ' || r.rolname,
           concat_ws(', ', CASE WHEN rolcanlogin THEN 'may sign in' ELSE 'may not sign in' END, CASE WHEN rolinherit THEN 'inherits' END,
                     CASE WHEN rolsuper THEN 'superuser' END, CASE WHEN rolbypassrls THEN 'BYPASSRLS' END,
                     CASE WHEN rolcreaterole THEN 'CREATEROLE' END, CASE WHEN rolcreatedb THEN 'CREATEDB' END,
                     CASE WHEN rolreplication THEN 'REPLICATION' END)
      FROM pg_roles r JOIN role USING (oid)
    UNION ALL
    -- ADMIN alone: whoever made the roles without being a superuser has it, and cannot act under it without a further grant
    SELECT 'membership of ' || pg_get_userbyid(m.member) || ' in ' || pg_get_userbyid(m.roleid),
           concat_ws(', ', 'member', CASE WHEN m.inherit_option THEN 'inherits' END, CASE WHEN m.set_option THEN 'may SET ROLE' END,
                     CASE WHEN m.admin_option THEN 'may hand it on' END)
      FROM pg_auth_members m
     WHERE (m.member IN (SELECT oid FROM role) OR m.roleid IN (SELECT oid FROM role)) AND (m.inherit_option OR m.set_option)
       -- roles of workers, of whom it is written which tenants they see
       AND NOT (pg_get_userbyid(m.roleid) = 'fencewatch_worker' AND m.inherit_option AND NOT m.set_option
                AND EXISTS (SELECT FROM fencewatch.worker_scope s WHERE s.role = pg_get_userbyid(m.member)))
    UNION ALL
    SELECT 'setting ' || name || ' of ' || CASE setrole WHEN 0 THEN 'every role' ELSE pg_get_userbyid(setrole) END || CASE WHEN here THEN ' in this database' ELSE '' END, value
      FROM setting
     WHERE name IN ('search_path', 'session_replication_role', 'row_security', 'role', 'timezone', 'statement_timeout', 'lock_timeout',
                    'idle_in_transaction_session_timeout', 'log_error_verbosity', 'log_min_error_statement', 'log_parameter_max_length',
                    'log_parameter_max_length_on_error', 'session_preload_libraries', 'local_preload_libraries')
        OR name LIKE 'default\_transaction\_%%' OR name LIKE 'fencewatch.%%'
    UNION ALL
    SELECT 'rights of ' || CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee) END || ' on the database',
           string_agg(a.privilege_type, ', ' ORDER BY a.privilege_type)
      FROM pg_database d, aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a
     WHERE d.datname = current_database() AND (a.grantee = 0 OR a.grantee IN (SELECT oid FROM role))
     GROUP BY a.grantee
    UNION ALL
    SELECT 'rights of ' || CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee) END || ' on schema ' || n.nspname,
           string_agg(a.privilege_type, ', ' ORDER BY a.privilege_type)
      FROM pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
     WHERE n.nspname IN ('public', 'fencewatch') AND a.grantee <> n.nspowner
       AND (n.nspname = 'fencewatch' OR a.grantee = 0 OR a.grantee IN (SELECT oid FROM role))
     GROUP BY n.nspname, a.grantee
    UNION ALL
    SELECT 'schema fencewatch', 'owner ' || pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'fencewatch'
    UNION ALL
    SELECT 'default rights of ' || pg_get_userbyid(d.defaclrole) || ' on ' || CASE d.defaclobjtype WHEN 'f' THEN 'functions' WHEN 'r' THEN 'tables'
               WHEN 'S' THEN 'sequences' WHEN 'T' THEN 'types' WHEN 'n' THEN 'schemas' ELSE d.defaclobjtype::text END,
           coalesce((SELECT string_agg(CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee) END || ' ' || a.privilege_type, ', '
                                       ORDER BY a.grantee, a.privilege_type) FROM aclexplode(d.defaclacl) a), 'none')
      FROM pg_default_acl d WHERE d.defaclrole IN (SELECT oid FROM role)
    UNION ALL
    SELECT CASE relkind WHEN 'S' THEN 'sequence ' WHEN 'v' THEN 'view ' WHEN 'm' THEN 'materialized view ' WHEN 'f' THEN 'foreign table '
                        ELSE 'table ' END || name,
           concat_ws(', ', 'owner ' || pg_get_userbyid(relowner), CASE WHEN relkind = 'p' THEN 'partitioned' END,
                     CASE WHEN relispartition THEN 'a partition' END, CASE WHEN relrowsecurity THEN 'row security' END,
                     CASE WHEN relforcerowsecurity THEN 'forced' END, CASE WHEN relpersistence = 'u' THEN 'unlogged' END,
                     CASE relreplident WHEN 'n' THEN 'no replica identity' WHEN 'f' THEN 'full replica identity' END,
                     array_to_string(reloptions, ', '))
      FROM ours
    UNION ALL
    SELECT 'column ' || r.name || '.' || t.attname,
           concat_ws(' ', format_type(t.atttypid, t.atttypmod), CASE WHEN t.attnotnull THEN 'not null' END,
                     CASE t.attidentity WHEN 'a' THEN 'generated always as identity' WHEN 'd' THEN 'generated by default as identity' END,
                     CASE t.attgenerated WHEN '' THEN 'default ' ELSE 'generated as ' END || pg_get_expr(d.adbin, d.adrelid))
      FROM relation r JOIN pg_attribute t ON t.attrelid = r.oid AND t.attnum > 0 AND NOT t.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = t.attrelid AND d.adnum = t.attnum
    UNION ALL
    SELECT 'constraint ' || k.conname || ' on ' || r.name,
           pg_get_constraintdef(k.oid) || CASE WHEN NOT k.convalidated AND pg_get_constraintdef(k.oid) NOT LIKE '%% NOT VALID' THEN ' NOT VALID' ELSE '' END
      FROM relation r JOIN pg_constraint k ON k.conrelid = r.oid WHERE k.contype <> 'n'   -- a column's line says not null
    UNION ALL
    SELECT 'index ' || i.relname || ' on ' || r.name, pg_get_indexdef(x.indexrelid) || CASE WHEN x.indisvalid THEN '' ELSE ' INVALID' END
      FROM relation r JOIN pg_index x ON x.indrelid = r.oid JOIN pg_class i ON i.oid = x.indexrelid
    UNION ALL
    SELECT 'trigger ' || t.tgname || ' on ' || r.name,
           pg_get_triggerdef(t.oid) || CASE t.tgenabled WHEN 'A' THEN ', always' WHEN 'R' THEN ', on replicas only' WHEN 'D' THEN ', DISABLED' ELSE '' END
      FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid WHERE NOT t.tgisinternal
    UNION ALL
    SELECT 'checks of ' || k.conname || ' on ' || r.name, 'triggers DISABLED'
      FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid JOIN pg_constraint k ON k.oid = t.tgconstraint
     WHERE t.tgisinternal AND t.tgenabled <> 'O' GROUP BY k.conname, r.name
    UNION ALL
    SELECT 'policy ' || p.polname || ' on ' || r.name,
           CASE p.polcmd WHEN '*' THEN 'ALL' WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' ELSE 'DELETE' END
           || CASE WHEN p.polpermissive THEN '' ELSE ' restrictive' END || ' to '
           || (SELECT string_agg(CASE member WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(member) END, ', ' ORDER BY member) FROM unnest(p.polroles) member)
           || coalesce(' using ' || pg_get_expr(p.polqual, p.polrelid), '') || coalesce(' with check ' || pg_get_expr(p.polwithcheck, p.polrelid), '')
      FROM relation r JOIN pg_policy p ON p.polrelid = r.oid
    UNION ALL
    SELECT 'rule ' || w.rulename || ' on ' || r.name, pg_get_ruledef(w.oid)
      FROM relation r JOIN pg_rewrite w ON w.ev_class = r.oid WHERE w.rulename <> '_RETURN'
    UNION ALL
    SELECT 'child ' || i.inhrelid::regclass || ' of ' || r.name, 'inherits' FROM relation r JOIN pg_inherits i ON i.inhparent = r.oid
    UNION ALL
    -- a view of somebody else, which reads our table with its owner's rights unless it says otherwise
    SELECT DISTINCT 'view ' || w.ev_class::regclass || ' over ' || r.name,
           'owner ' || pg_get_userbyid(v.relowner) || CASE WHEN v.reloptions @> '{security_invoker=true}' THEN ', with its reader''s rights' ELSE '' END
      FROM relation r JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = r.oid AND d.classid = 'pg_rewrite'::regclass
      JOIN pg_rewrite w ON w.oid = d.objid AND w.ev_class <> r.oid JOIN pg_class v ON v.oid = w.ev_class
    UNION ALL
    SELECT 'rights of ' || CASE grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(grantee) END || ' on ' || name,
           string_agg(privilege || coalesce(' (' || columns || ')', ''), '; ' ORDER BY privilege, columns COLLATE "C")
      FROM given GROUP BY name, grantee
    UNION ALL
    SELECT 'function ' || f.name,
           concat_ws(', ', 'owner ' || pg_get_userbyid(p.proowner), l.lanname, CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END,
                     CASE p.proparallel WHEN 's' THEN 'parallel safe' WHEN 'r' THEN 'parallel restricted' END, CASE WHEN p.proisstrict THEN 'strict' END,
                     CASE WHEN p.proleakproof THEN 'LEAKPROOF' END, CASE WHEN p.prosecdef THEN 'with its owner''s rights' END,
                     array_to_string(p.proconfig, ', '), 'returns ' || pg_get_function_result(p.oid),
                     'body ' || left(encode(sha256(convert_to(coalesce(pg_get_function_sqlbody(p.oid), p.prosrc), 'UTF8')), 'hex'), 16))
      FROM (SELECT q.oid, CASE n.nspname WHEN 'public' THEN 'public.' ELSE '' END || q.proname || '(' || pg_get_function_identity_arguments(q.oid) || ')' AS name
              FROM pg_proc q JOIN pg_namespace n ON n.oid = q.pronamespace
             WHERE n.nspname = 'fencewatch' OR n.nspname = 'public' AND q.proowner IN (SELECT oid FROM role)) f
      JOIN pg_proc p ON p.oid = f.oid JOIN pg_language l ON l.oid = p.prolang
    UNION ALL
    SELECT 'rights of ' || CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee) END || ' on function ' || p.proname || '('
               || pg_get_function_identity_arguments(p.oid) || ')', string_agg(a.privilege_type, ', ')
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
     WHERE n.nspname = 'fencewatch' AND a.grantee <> p.proowner
     GROUP BY p.oid, p.proname, a.grantee
    UNION ALL
    SELECT 'event trigger ' || e.evtname, e.evtevent || CASE e.evtenabled WHEN 'D' THEN ', DISABLED' ELSE '' END
      FROM pg_event_trigger e WHERE e.evtowner IN (SELECT oid FROM role)
)
SELECT object, regexp_replace(string_agg(detail, ' | ' ORDER BY detail COLLATE "C"), '\s+', ' ', 'g') FROM said GROUP BY object
