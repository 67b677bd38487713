"""An emulator of the Cloud TPU API, and of what it needs beside, whose VMs are local processes.

It answers the unmodified `google-cloud-tpu` client over gRPC, runs each node's real startup script
on every one of its hosts, can break in the ways that the cloud breaks, and keeps a ledger of what
would have been billed. Over REST it serves the VMs of Compute Engine likewise, and answers what a
launcher asks of IAM, Resource Manager, Service Usage and Cloud Storage. Linux only: hosts live on
127.0.0.0/8 and below a child subreaper.

It trusts every user of this machine, as nothing on loopback tells them apart: each can call its
API, and read from port 7979 of a host's address the metadata of any node, the token of its Ray
cluster included. Do not use it on a machine that you share with people you do not trust.

In reading order:

    client       find or start an emulator, attach to it, send it commands
    __main__     the command line: serve, fault, ledger, hosts, bucket
    server       the process: lock, endpoint, the end when nobody needs it
    world        all that it holds, for whoever answers a call
    calls        what surrounds every call: the count, faults, a disabled API
    rpc          tables of methods → gRPC handlers
    front        the REST front: its socket; services: all its routes; rest: what a route is
    api_nodes    CreateNode … StartNode
    api_queued   CreateQueuedResource … ResetQueuedResource
    api_alpha    the same in v2alpha1, which `alpha` translates; api_rest_tpu: over REST
    api_catalog  accelerator types, runtime versions, locations
    api_operations   poll, wait for, cancel operations
    api_compute  instances, firewalls, machine types, their operations (compute_operations)
    api_iam, api_project, api_quota, api_storage   service accounts, policies, APIs, quotas, buckets
    control      the emulator's own service: attach, fault, ledger, hosts, console, bucket
    checks       what the API refuses, with its codes and texts in api_errors
    fleet        every node and its changes of state
    queued_resources   every queued resource and its changes of state; queued: one of them
    quota        chips and creates a minute, as far as rules limit them
    instances    every VM of Compute Engine and its changes of status; vm: one of them
    projects     service accounts, policies, disabled APIs, buckets
    node, host   one node; one VM. changing: the changes under way of a node, a VM, …
    guest        what a VM sees: environment and metadata values
    operations   long-running operations
    metadata     the HTTP metadata server of a host
    init         process 1 of a host
    faults       the named faults and their options, as tables; rule_schema shows them to editors
    rules        when a fault strikes whom; check_rule, for configurations
    ledger       everything ever created, and its billed seconds
    presence     who is attached; names, wire: resource names and message types of the API
"""
