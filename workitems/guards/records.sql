-- The tables that came after tables.sql: who decided what, what outlives the work table, what a failover may have lost.
-- Run by migration 0004 as fencewatch_owner. Rights and policies are in the files that write them.

-- ---------------------------------------------------------------------------------------------------------------
-- Audit log: one entry per decision, appended by triggers and by fencewatch.enter, never changed (audit.sql)
-- ---------------------------------------------------------------------------------------------------------------
CREATE TABLE audit_entry (
    entry_id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at               timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid              xid8        NOT NULL DEFAULT pg_current_xact_id(),   -- the sealer cuts by transaction, never by id
    actor            bigint,                    -- the person, by the signed context; null: a command run with a database role
    actor_rights     text[]      NOT NULL DEFAULT '{}',                   -- what that person was in that tenant, at that moment
    said_by          text,                      -- who a command says ran it: a claim, not proof
    db_role          text        NOT NULL DEFAULT session_user,
    verb             text        NOT NULL,
    outcome          text        NOT NULL,
    outcome_reason   text,                      -- a short code: why changed, refused or busy
    tenant_digest    bytea,                     -- null: concerns no single tenant
    op_digest        bytea,                     -- null: concerns no single item
    state_before     text,
    state_after      text,
    fence_before     bigint,
    fence_after      bigint,
    subject          jsonb,                     -- what else was decided about, before and after; never an identifier or a payload
    second_person    bigint,
    batch            uuid,
    request_id       text,
    software_version text,
    text_hash        bytea,                     -- seals the reason and evidence in audit_text: sha256(salt || text)
    CONSTRAINT outcome_known CHECK (outcome IN ('applied', 'changed', 'refused', 'busy')),
    CONSTRAINT audit_verb_bounded CHECK (char_length(verb) BETWEEN 1 AND 60)
);
CREATE INDEX audit_entry_of_item ON audit_entry (op_digest, entry_id) WHERE op_digest IS NOT NULL;
CREATE INDEX audit_entry_of_tenant ON audit_entry (tenant_digest, entry_id);
CREATE INDEX audit_entry_of_actor ON audit_entry (actor, at);
CREATE INDEX audit_entry_recent ON audit_entry USING brin (at) WITH (pages_per_range = 32, autosummarize = on);

-- What people wrote, apart from the entry so that it can be erased: the entry keeps the salted hash.
CREATE TABLE audit_text (
    entry_id bigint NOT NULL PRIMARY KEY REFERENCES audit_entry,
    salt     bytea  NOT NULL CHECK (octet_length(salt) = 32),
    reason   text   NOT NULL CHECK (char_length(reason) <= 2000),
    evidence text   NOT NULL DEFAULT '' CHECK (char_length(evidence) <= 8000)
);

-- Batches of entries, chained: root is the RFC 6962 Merkle root over the batch's leaves.
CREATE TABLE audit_seal (
    seal_id       bigint      PRIMARY KEY,      -- 1, 2, 3, ... without a gap
    sealed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    horizon       xid8        NOT NULL,         -- every transaction before this one had ended: its entries are in or before
    entries       bigint      NOT NULL CHECK (entries > 0),   -- in this batch,
    entries_total bigint      NOT NULL,                       -- and up to its end
    root          bytea       NOT NULL CHECK (octet_length(root) = 32),
    previous      bytea       NOT NULL CHECK (octet_length(previous) = 32),
    chained       bytea       NOT NULL CHECK (octet_length(chained) = 32)
);
-- The entries that no batch has yet: written with the entry, taken away with its leaf.
CREATE TABLE audit_unsealed (
    entry_id bigint NOT NULL PRIMARY KEY REFERENCES audit_entry
);
-- Which entry is which leaf of which batch.
CREATE TABLE audit_leaf (
    entry_id bigint NOT NULL PRIMARY KEY REFERENCES audit_entry,
    seal_id  bigint NOT NULL REFERENCES audit_seal,
    place    bigint NOT NULL,
    leaf     bytea  NOT NULL CHECK (octet_length(leaf) = 32),
    CONSTRAINT audit_leaf_place_once UNIQUE (seal_id, place)
);

-- ---------------------------------------------------------------------------------------------------------------
-- Rights: which membership role may use which verb. A verb that is not listed here is nobody's.
-- ---------------------------------------------------------------------------------------------------------------
CREATE TABLE verb_right (
    role text NOT NULL,
    verb text NOT NULL CHECK (char_length(verb) BETWEEN 1 AND 60),
    PRIMARY KEY (role, verb),
    CONSTRAINT verb_right_role_known CHECK (role IN ('viewer', 'operator', 'approver', 'auditor'))
);
INSERT INTO verb_right (role, verb) VALUES
    ('viewer', 'search'), ('operator', 'search'), ('approver', 'search'), ('auditor', 'search'),
    ('auditor', 'read_audit'), ('operator', 'revoke'), ('operator', 'hold'), ('operator', 'release_hold'),
    ('operator', 'propose_lossless'), ('operator', 'confirm_lossless'), ('operator', 'withdraw_lossless');

-- ---------------------------------------------------------------------------------------------------------------
-- Failovers that lost nothing: proposed by one person with evidence, confirmed by another (operations/failovers.sql)
-- ---------------------------------------------------------------------------------------------------------------
CREATE TABLE lossless_failover (
    failover_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    from_timeline bigint      NOT NULL CHECK (from_timeline > 0),
    to_timeline   bigint      NOT NULL,
    proposed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    proposed_by   bigint      NOT NULL,
    expires_at    timestamptz NOT NULL,         -- a proposal that nobody confirmed counts for nothing after this
    confirmed_at  timestamptz,
    confirmed_by  bigint,
    withdrawn_at  timestamptz,
    withdrawn_by  bigint,
    CONSTRAINT failover_goes_forward CHECK (to_timeline > from_timeline),
    CONSTRAINT confirmed_whole CHECK ((confirmed_at IS NULL) = (confirmed_by IS NULL)),
    CONSTRAINT withdrawn_whole CHECK ((withdrawn_at IS NULL) = (withdrawn_by IS NULL)),
    CONSTRAINT two_persons CHECK (confirmed_by <> proposed_by)
);

-- ---------------------------------------------------------------------------------------------------------------
-- What outlives the work table
-- ---------------------------------------------------------------------------------------------------------------
-- One row per item that retention removed: a late enqueue of it is still a replay or a conflict. Keyed by digest, so that
-- it names nobody once the tenant's key is destroyed. Written an hour at least before the item goes (fencewatch.retire).
CREATE TABLE tombstone (
    op_digest          bytea       NOT NULL PRIMARY KEY,
    tenant_digest      bytea       NOT NULL,
    digest_key_version int         NOT NULL,
    item_id            bigint      NOT NULL,
    job_type           text        NOT NULL,
    payload_hash       bytea       NOT NULL,
    state              text        NOT NULL,
    outcome_code       text,
    fence              bigint      NOT NULL,
    ended_at           timestamptz NOT NULL,
    written_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid                xid8        NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT tombstone_ended CHECK (state IN ('succeeded', 'failed_terminal'))
);
CREATE INDEX tombstone_of_tenant ON tombstone (tenant_digest, digest_key_version);

-- The digest that an item had under an earlier key: old links resolve by it until it expires.
CREATE TABLE former_digest (
    former        bytea       NOT NULL PRIMARY KEY,
    tenant_digest bytea       NOT NULL,
    item_id       bigint      NOT NULL,
    op_digest     bytea       NOT NULL,          -- the item's digest now
    resolves_until timestamptz NOT NULL
);
CREATE INDEX former_digest_of_item ON former_digest (op_digest);

-- Which text of the SQL files this database has (guards/install.py).
CREATE TABLE fencewatch.installed (
    only_row    boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    fingerprint text        NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
