"""
The abuse table: what somebody with a role, a form or a page may try, and the tests that show what comes of it.

20  one key again, with the same or another payload; two tenants' operations of one id
    tests/protocol/test_enqueue.py::test_the_same_key_with_another_hash_is_a_conflict_and_changes_nothing
    tests/protocol/test_enqueue.py::test_equal_operation_ids_of_two_tenants_are_two_operations
    tests/protocol/test_enqueue.py::test_sixteen_producers_of_one_key_make_one_row
21  injected SQL sets the context of a tenant
    tests/dashboard/test_access.py::test_a_forged_expired_or_foreign_context_sees_nothing_and_breaks_nothing
22  a context used on another connection, too late, or forged
    tests/dashboard/test_access.py::test_a_context_copied_from_another_connection_sees_nothing
    tests/dashboard/test_access.py::test_a_forged_expired_or_foreign_context_sees_nothing_and_breaks_nothing
23  a context that the request before left behind: persistent connection, pool, pooler
    tests/dashboard/test_access.py::test_nothing_of_a_context_is_left_for_the_next_request
    tests/ground/test_pooling.py::test_interleaved_requests_of_two_tenants_show_each_its_own
24  no context, or an empty one
    tests/dashboard/test_access.py::test_without_any_context_nothing_is_seen
    tests/dashboard/test_access.py::test_a_forged_expired_or_foreign_context_sees_nothing_and_breaks_nothing
25  a streamed answer outlives the context that it was made in: such an answer is refused
    tests/dashboard/test_access.py::test_a_streaming_answer_is_not_built_inside_a_context
26  the pages' role writes, by a model or by SQL
    tests/dashboard/test_access.py::test_every_way_to_write_through_a_model_is_refused_in_plain_words
    tests/abuse/test_writes.py::test_a_role_writes_what_the_list_says_and_nothing_else
    tests/abuse/test_writes.py::test_no_role_gets_around_its_rights
27  an action with a stale fence, a double click, the back button, two people at once
    tests/operations/test_revoke.py::test_a_double_click_and_the_back_button_change_nothing_more
    tests/operations/test_revoke.py::test_two_at_once_are_one_change
28  an action on another tenant's item
    tests/operations/test_revoke.py::test_another_tenants_item_and_none_at_all_are_one_answer
29  an action without a reason; an unknown item back to the queue without a reconcile
    tests/operations/test_revoke.py::test_a_reason_is_given_and_names_no_identifier
    tests/operations/test_revoke.py::test_the_operators_role_itself_takes_no_arrow_out_of_unknown
30  an edited entry of the audit log
    tests/oversight/test_audit.py::test_an_altered_entry_is_named_with_its_seal
31  the log's tail cut, or rewritten to its length
    tests/oversight/test_audit.py::test_a_tail_that_was_cut_shows_by_a_published_checkpoint_alone
    tests/oversight/test_audit.py::test_a_tail_that_was_rewritten_to_its_length_shows_by_a_published_checkpoint
32  a slow transaction commits its entry behind the cut of a seal
    tests/oversight/test_audit.py::test_a_slow_transaction_that_commits_behind_the_cut_is_in_the_next_batch
33  the owner lifts the triggers
    tests/oversight/test_audit.py::test_the_owner_who_lifts_the_triggers_is_found_out
    tests/ground/test_drift.py::test_a_rule_that_somebody_changed_is_named
34  temporary tables, a path of one's own, functions and operators of our names
    tests/abuse/test_shadowing.py::test_no_context_is_believed_that_was_signed_by_another_key
    tests/abuse/test_shadowing.py::test_a_worker_gets_no_fence_lease_identity_or_history_of_its_own_making
    tests/abuse/test_shadowing.py::test_a_keeper_sweeps_by_the_true_job_type_and_the_true_clock
35  a plain view, a partition read by itself
    tests/abuse/test_catalog.py::test_nothing_in_the_catalog_gets_around_row_security
    tests/abuse/test_catalog.py::test_a_plain_view_would_have_shown_every_tenant_to_the_pages
36  a raw identifier in logs, pages, headers, addresses, messages, activity, history, audit log
    tests/abuse/test_canaries.py::test_a_planted_identifier_is_in_its_columns_and_nowhere_else
37  a dictionary tried on the search box
    tests/operations/test_search.py::test_a_thousand_guesses_find_thirty_answers_and_leave_one_refusal_a_minute
38  two digests that begin alike
    tests/operations/test_search.py::test_digests_that_begin_alike_are_listed_and_a_short_form_opens_nothing
39  a digest key rotated half-way
    tests/operations/test_rotation.py::test_old_and_new_rows_are_found_while_a_rotation_is_half_done
    tests/operations/test_rotation.py::test_producers_and_a_rotation_at_once_lose_nothing
"""
