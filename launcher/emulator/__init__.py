"""An emulator of the Cloud TPU API whose TPU VMs are groups of local processes.

It answers the unmodified `google-cloud-tpu` client over gRPC, runs each node's real startup script
on every one of its hosts, can break in the ways that the cloud breaks, and keeps a ledger of what
would have been billed. Linux only: hosts live on 127.0.0.0/8 and below a child subreaper.

It trusts every user of this machine, as nothing on loopback tells them apart: each can call its
API, and read from port 7979 of a host's address the metadata of any node, the token of its Ray
cluster included. Do not use it on a machine that you share with people you do not trust.

In reading order:

    client       find or start an emulator, attach to it, send it commands
    __main__     the command line: serve, fault, ledger, hosts
    server       the process: lock, endpoint, the end when nobody needs it
    rpc          tables of methods → gRPC handlers; faults that hit a call
    api_nodes    CreateNode … StartNode        (queued resources: one more such table)
    api_catalog  accelerator types, runtime versions, locations
    api_operations   poll, wait for, cancel operations
    control      the emulator's own service: attach, fault, ledger, hosts, console
    checks       what the API refuses, with its codes and texts in api_errors
    fleet        every node and its changes of state
    node, host   one node; one TPU VM
    guest        what a TPU VM sees: environment and metadata values
    operations   long-running operations
    metadata     the HTTP metadata server of a host
    init         process 1 of a host
    faults       the named faults and their options, as tables; rule_schema shows them to editors
    rules        when a fault strikes whom; check_rule, for configurations
    ledger       everything ever created, and its billed seconds
    presence     who is attached; names, wire: resource names and message types of the API
"""
