-- The company's own tables, run by the owner role at each start of the demo. They stand beside the work table, so that a
-- refund and its completion can be one commit (target type A).

CREATE SCHEMA IF NOT EXISTS demo;

CREATE TABLE IF NOT EXISTS demo.invoice (
    tenant_id  text NOT NULL,
    invoice_no text NOT NULL,
    amount     int  NOT NULL CHECK (amount > 0),       -- cents
    standing   text NOT NULL DEFAULT 'paid' CHECK (standing IN ('paid', 'refunded', 'disputed')),
    PRIMARY KEY (tenant_id, invoice_no)
);

-- No unique constraint on tenant and operation: the fence and the invoice's standing have to keep a refund from being made
-- twice, and the demo's counter has to be able to see it if they fail.
CREATE TABLE IF NOT EXISTS demo.refund (
    refund_no    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id    text   NOT NULL,
    operation_id text   NOT NULL,
    invoice_no   text   NOT NULL,
    amount       int    NOT NULL,
    fence        bigint NOT NULL
);

-- Each tenant numbers its own operations, each series from 1001: so equal ids in all tenants are the rule.
CREATE TABLE IF NOT EXISTS demo.numbering (
    tenant_id text NOT NULL,
    series    text NOT NULL,
    latest    int  NOT NULL DEFAULT 1000,
    PRIMARY KEY (tenant_id, series)
);

GRANT USAGE ON SCHEMA demo TO fencewatch_worker;
GRANT SELECT, INSERT ON demo.invoice, demo.refund, demo.numbering TO fencewatch_worker;
GRANT UPDATE (standing) ON demo.invoice TO fencewatch_worker;
GRANT UPDATE (latest) ON demo.numbering TO fencewatch_worker;
