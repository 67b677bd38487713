"""Sweeps: the trials of `-m` share one cluster, which is provisioned once and deleted once.

    overrides ──trials──▶ Trial (spec, identity)        pure; all are checked before any call
        │ groups: trials that ask for the same slices   one cluster at a time
        ▼
    invocation.session ──holding──▶ Joined              one record, one Ray cluster, one driver
        │ layout: places = slices | hosts | chips       each with an agent of its own
        ▼
    desk ──▶ one thread a place ──▶ supervise.one_attempt on a small stand-in for `Holding`
        │  next trial as soon as a place is free        a run folder for each trial
        ▼
    table, trials.json, trials.csv                      best first

`grids` has the trials of Hydra's grid, and of the batches of other sweepers; `tunes` those that a
search suggests (`search_settings`, `search_space`, `search`, `search_pbt`). Both run them by
`sweeps`, which has a `driver` and a `desk` for each cluster.

A trial is known by a hash of its overrides, so that the same command again finds its folder: what
has finished is skipped, what was interrupted goes on from its checkpoint. What is to run next comes
from a `protocol.Search`; the grid of Hydra's basic sweeper is the plainest of them. A slice that is
lost is replaced once, and the trials that ran on it wait again; they have not failed.
"""
