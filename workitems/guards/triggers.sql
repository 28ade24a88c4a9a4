-- Which functions guard which table. BEFORE triggers run in the order of their names: guard, identify, never_again.
CREATE TRIGGER guard BEFORE INSERT OR UPDATE ON work_item FOR EACH ROW EXECUTE FUNCTION fencewatch.guard();
CREATE TRIGGER identify BEFORE INSERT ON work_item FOR EACH ROW EXECUTE FUNCTION fencewatch.identify();
CREATE TRIGGER never_again BEFORE INSERT ON work_item FOR EACH ROW EXECUTE FUNCTION fencewatch.never_again();
CREATE TRIGGER only_buried BEFORE DELETE ON work_item FOR EACH ROW EXECUTE FUNCTION fencewatch.only_buried();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON work_item FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER record_enqueued AFTER INSERT ON work_item REFERENCING NEW TABLE AS enqueued
    FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.record_enqueued();
CREATE TRIGGER record_changed AFTER UPDATE ON work_item REFERENCING OLD TABLE AS former NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.record_changed();
ALTER TABLE work_item ENABLE ALWAYS TRIGGER guard, ENABLE ALWAYS TRIGGER identify, ENABLE ALWAYS TRIGGER never_again,
    ENABLE ALWAYS TRIGGER only_buried, ENABLE ALWAYS TRIGGER never_truncated, ENABLE ALWAYS TRIGGER record_enqueued, ENABLE ALWAYS TRIGGER record_changed;

CREATE TRIGGER identify_member BEFORE INSERT OR UPDATE ON membership FOR EACH ROW EXECUTE FUNCTION fencewatch.identify_member();
ALTER TABLE membership ENABLE ALWAYS TRIGGER identify_member;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON work_event FOR EACH ROW EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON work_event FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
ALTER TABLE work_event ENABLE ALWAYS TRIGGER append_only, ENABLE ALWAYS TRIGGER never_truncated;

CREATE TRIGGER never_removed BEFORE DELETE ON tombstone FOR EACH ROW EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON tombstone FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
ALTER TABLE tombstone ENABLE ALWAYS TRIGGER never_removed, ENABLE ALWAYS TRIGGER never_truncated;
