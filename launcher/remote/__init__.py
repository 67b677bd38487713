"""Runs whose supervisor is not this process but a Ray job on the coordinator.

In reading order:

`package`   the zip that a job is made of: this package, the user's code, the Spec
`frames`    what the job says on its stdout: every write to its run folder, and every line for the
            screen; and the mirror that repeats the writes here, byte for byte
`entry`     the job: the very supervisor of a local run, in a session that speaks frames
`jobs`      submit, follow and stop a job through Ray's dashboard
`tunnel`    one port of the coordinator's, here
`vm`        the coordinator's own VM: made, used again, stopped or deleted; `firewall`, its rules;
            `operations`, the wait for each change
`borrow`    slices of a cluster that exists, found by the job that runs in it
`sites`     the kinds of coordinators, behind one interface
`follow`    a job's frames into the run folder and on the screen
`standing`  where a remote run stands, for `status`, `logs` and `gc`
`ending`    what `down`, `cancel` and `gc` do with it
`launch`    what `run` and `up` do: submit, follow, and submit again when a slice took host 0 along
"""
