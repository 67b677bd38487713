"""Slices: what to ask for, in which order, and how it is given back.

In reading order:

`capacity`   the ways to buy; `prices`, what they cost
`requests`   the literal requests of an offer
`on_record`  what is written down before it is asked for, and whether it is the same
`slices`     asks for a choice, and for the next in the `chain` when it is refused
`looks`      which of the slices are there, come, or are gone
`unwanted`   deletes what a run wants no more
`removal`    deletes all that a record names, and what carries its labels
`joining`    waits for the hosts of slices in the Ray cluster
`provision`  the whole of it: hosts that have joined, for the time of a block
`elastic`    another number of slices; `probe`, the request for more while the run goes on
"""
