"""What the program says before a command is one of the log, by code, the first word on standard error.

A code that is released keeps its meaning. ``tests/tidy/test_codes.py`` compares with what is raised. Codes of refused
commands are those of ``kernel.codes``, errors of the log and of the client stand beside their classes.
"""

from __future__ import annotations

from typing import Final

COMMAND_CODES: Final = {
    "ambiguous_cluster": "Several known clusters have this name, or ids that begin so.",
    "audit_impossible": "What the audit reads is not there, or is not whole; nothing was proved.",
    "bad_ddl": "The file of statements cannot be read.",
    "bad_file": "The file cannot be read or written: path and reason.",
    "bad_folder": "The folder cannot be made or written: path and reason.",
    "bad_hex": "Key or value are not hex digits, as --hex promises.",
    "bad_option": "An option says nothing that can be done.",
    "bad_seeds": "Seeds are A..B with A not above B, or one seed; a picture is of one.",
    "bad_text": "An argument has bytes that are no text in UTF-8.",
    "bad_usage": "Options contradict each other, or one lacks another.",
    "checkers_disagree": "Two checkers judge a history differently: one of them has a defect.",
    "epoch_unknown": "The log ends before this epoch, or begins after it.",
    "extra_missing": "The installation lacks an extra: which one, and how to get it.",
    "import_failed": "Kafka refused what the import did; nothing is lost or twice.",
    "no_broker": "No broker is named, none is known, and no stack runs on this machine.",
    "no_cache": "No Redis is known.",
    "no_cluster": "No cluster is named, and none is in use.",
    "no_delays": "No folder of rules on held entries is named.",
    "no_rule": "No rule is named that is to be released.",
    "no_script": "The file is no script that `sim run` has saved.",
    "not_confirmed": "What cannot be undone was not confirmed; nothing was done.",
    "not_repaired": "The repair of the CDC generation ended in another way than was asked for.",
    "nothing_there": "Nothing is stored under the key.",
    "operation_cancelled": "The operation that was watched was cancelled.",
    "replica_halted": "The log has an entry at which replicas halt: offset, code and reason.",
    "state_file_refused": "The edited state does not fit the copy of the log, or breaks a rule.",
    "still_in_flight": "The operation goes on; the time to watch it is over.",
    "try_again": "The cache does not know one whole epoch just now.",
    "type_mismatch": "A value is not of its column's type, or the table has no such column.",
    "unknown_cluster": "No known cluster has this name, nor an id that begins so.",
    "unknown_mutant": "No planted bug has this name.",
    "unknown_profile": "No profile has this name.",
    "unknown_role": "No agent has this role.",
    "writes_appended": "Writes may have been judged by the time, or the generation, that is to be taken back.",
}
STACK_CODES: Final = {
    "bad_artifact_list": "The list of jars and their digests was changed by hand.",
    "bad_settings": "A file of settings of the stack cannot be understood: mend or remove it.",
    "fetch_failed": "Jars could not be fetched.",
    "format_failed": "The broker's storage could not be prepared.",
    "jars_missing": "Jars are not there: `make setup` gets them.",
    "java_missing": "There is no Java that fits.",
    "no_free_port": "All ports that the stack may take are taken.",
    "no_log": "That part has written no log yet.",
    "redis_missing": "There is no Redis, neither in PATH nor in a wheel.",
    "socket_exposed": "The folder of the socket of Redis belongs to others, too.",
    "start_failed": "A part of the stack ended each time it was started.",
    "start_timeout": "The stack took no work in time.",
    "stop_failed": "A process of the stack does not end.",
    "unknown_log": "The stack has no log of that name.",
}
JOB_CODES: Final = {
    "bad_row": "Bytes in the CDC topic, or out of the routing, that are no CDC row.",
    "checkpoint_cut_off": "What the checkpoint was to go on with is closed already: the way out is in the text.",
    "checkpoint_in_use": "Another driver works on the checkpoint.",
    "checkpoint_lost": "The writer has worked before, and this checkpoint is empty.",
    "checkpoint_of_another": "The checkpoint belongs to another cluster or writer.",
    "connect_unsupported": "The job does not run through Spark Connect.",
    "connector_missing": "Spark lacks the Kafka connector.",
    "images_elsewhere": "The folder of row images is not on this machine.",
    "images_lost": "The states that preimages are made from are gone.",
    "images_taken": "A newer writer has the states that preimages are made from.",
    "lake_changed": "The checkpoint writes to another lake.",
    "lake_left_out": "The checkpoint writes to a lake, too, and none was named.",
    "lake_lost": "The lake, or a table of it, is not there any more: bring it back, or begin anew on purpose.",
    "lake_of_another": "The lake is that of another cluster.",
    "lake_unreadable": "The lake cannot be read: is Delta among Spark's jars?",
    "not_registered": "The log refuses the writer's registration, for the reason that it names.",
    "partitions_changed": "The CDC topic has another number of partitions than the checkpoint knows.",
    "plan_chain_broken": "Stored plans contradict each other or the source.",
    "plan_chain_moved": "Somebody else works on the checkpoint.",
    "port_in_use": "The port for figures is taken.",
    "query_failed": "Spark's query has failed; the checkpoint is whole.",
    "source_cut": "The mutations topic ends before what was decided of it.",
    "source_in_use": "Another writer logs this source.",
    "spark_lost": "Spark's JVM has ended; the checkpoint is whole.",
    "spark_not_started": "Spark did not start; its own words are above.",
    "stop_requested": "The job was asked to stop.",
    "workers_lack_checkpoint": "Spark's workers do not reach the checkpoint's folder.",
    "workers_lack_ringlog": "Spark's workers do not have Ringlog.",
    "writer_replaced": "A newer incarnation of the writer has registered.",
}
PROGRAM_CODES: Final = {
    "Why a command of the program is refused": COMMAND_CODES,
    "Errors of the stack": STACK_CODES,
    "Why the CDC job stops": JOB_CODES,
}
"""Tables of the page, by title."""
